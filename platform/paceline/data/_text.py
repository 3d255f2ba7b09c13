"""The text of `text_file`, and the windows that it is cut into: without torch."""

from functools import cache
from pathlib import Path

from paceline.errors import EnvironmentFault


def count_windows(size: int, context_length: int) -> int:
    """Samples that a text of `size` bytes, at least 2, is cut into: all its bytes but the first are targets."""
    return -(-(size - 1) // context_length)


@cache
def python_manual() -> bytes:
    """The topics of Python's `help()` in alphabetical order, each paragraph where it comes first, in UTF-8.

    Part of CPython, under its licence. 374,092 bytes in Python 3.11.7, 397,863 in 3.12.1 and 415,048 in 3.13.0.

    Raises:
        EnvironmentFault: this Python was installed without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise EnvironmentFault(
            f"data text_file: this Python comes without its reference manual ({error}): name a text in data.file",
            "data-missing",
        ) from error
    # Some topics are also part of a longer one; twice in the text, they would be in both of the sets.
    paragraphs: dict[str, str] = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].strip().split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(paragraphs.values()).encode()


def file_size(file: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def read_text(file: Path) -> bytes:
    """The bytes of a file.

    Raises:
        EnvironmentFault: it cannot be read.
    """
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        message = f"data text_file: {file.absolute()} cannot be read: {error}"
        raise EnvironmentFault(message, "data-unreadable", file=str(file.absolute())) from error
