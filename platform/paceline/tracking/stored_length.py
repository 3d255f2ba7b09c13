"""Length of a run's record that its object store has. Only so much is uploaded to MLflow.

A run that continues elsewhere has what the store has: MLflow must not know more than that, or it would be told points a
second time. Whoever keeps the store's copy and whoever sends are different processes, which meet in the run's folder.
"""

import os
from contextlib import suppress
from pathlib import Path

from paceline.private_files import make_folder, write_private

MARK = ".stored"
"""Holds how many bytes of the journal are in the store. A run that is in no store has no such file."""
WANTED = ".wanted"
"""Is there when somebody waits for the rest."""


def stored_bytes(folder: Path) -> int | None:
    """How much of the journal in a recorder's folder is in the store; None when the run is in none."""
    try:
        return int((folder / MARK).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return 0


def note_stored(folder: Path, size: int) -> None:
    """So many bytes are in the store."""
    make_folder(folder)
    temporary = folder / f"{MARK}.new"
    write_private(temporary, str(size).encode())
    os.replace(temporary, folder / MARK)


def hurry(folder: Path) -> None:
    """Have the rest put into the store soon."""
    with suppress(OSError):
        write_private(folder / WANTED, b"")


def is_hurried(folder: Path) -> bool:
    """Whether somebody waits for the rest."""
    return (folder / WANTED).exists()


def is_heard(folder: Path) -> None:
    """What there is by now is about to be put into the store."""
    (folder / WANTED).unlink(missing_ok=True)
