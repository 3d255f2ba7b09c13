"""Places that a person names: files, folders, and the variables that set defaults for them."""

import os
from pathlib import Path

from paceline.errors import EnvironmentFault

STORAGE_VARIABLE = "PACELINE_STORAGE"
"""Holds the runs where `storage.path` is not set: a folder, or an address."""
ADDRESS_VARIABLE = "PACELINE_ADDRESS"
"""The Ray cluster that is used where no address is given."""


def default_storage() -> str | None:
    """Return the value that the environment sets for `storage.path`; None selects `runs` in the working folder."""
    return os.environ.get(STORAGE_VARIABLE, "").strip() or None


def default_address() -> str | None:
    """Return the address of the Ray cluster that the environment sets; None selects a private Ray."""
    return os.environ.get(ADDRESS_VARIABLE, "").strip() or None


def place_of(text: str | Path) -> Path:
    """Return the absolute path of a file or a folder, with `~` expanded. The path does not have to exist.

    Raises:
        EnvironmentFault: the system refuses the name, `~user` does not exist, or the working folder was removed.
    """
    try:
        place = Path(text).expanduser()
    except RuntimeError as error:
        raise EnvironmentFault(f"{str(text)!r} is not a path: {error}; write the whole path", "bad-path") from None
    try:
        place = place.absolute()
    except OSError as error:
        reason = f"the working folder cannot be determined ({error.strerror}): it was removed, or moved"
        raise EnvironmentFault(f"{reason}; change to a folder that is there", "no-working-folder") from None
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # not there yet
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message = f"{_short(str(text))!r} cannot be looked at: {reason}; name another place"
        raise EnvironmentFault(message, "bad-path") from None
    return place


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
