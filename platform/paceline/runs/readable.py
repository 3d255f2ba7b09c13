"""Errors about the files of a run or a sweep that cannot be read, or are damaged."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import EnvironmentFault, PacelineError


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """For a body that reads what lies in the folder of a run, a sweep or a trial.

    Raises:
        EnvironmentFault: the body raised an error of the file system, or one that damaged entries lead to.
    """
    try:
        yield
    except PacelineError:
        raise
    except OSError as error:
        file = error.filename or folder
        hint = "make it readable, or put it back from a copy"
        told = f"{file} cannot be read: {error.strerror or error}; {hint}"
        raise EnvironmentFault(told, "file-unreadable", path=file) from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise EnvironmentFault(
            f"the files in {folder} cannot be understood ({type(error).__name__}: {error}): they are damaged, or those "
            "of another version of Paceline; put them back from a copy",
            "file-damaged",
            path=folder,
        ) from None
