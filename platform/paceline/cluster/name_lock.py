"""The lock on a name: one command of a machine at a time works on the runs, sweeps or tune-ups of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from paceline.errors import EnvironmentFault
from paceline.private_files import make_folder, open_lock

LOCK = ".lock"
"""File in the folder of a name, which is locked while something of that name is at work."""


@contextmanager
def nobody_works_on(home: Path) -> Iterator[bool]:
    """Whether no run or sweep of a name continues; if so, none can begin during the body.

    Raises:
        OSError: the folder cannot be written to.
    """
    try:
        lock = lock_home(home)
    except EnvironmentFault:
        yield False
        return
    try:
        yield True
    finally:
        lock.close()


def lock_home(home: Path) -> IO[str]:
    """Keep other processes of this machine from working on a name, as long as the file is open.

    Raises:
        EnvironmentFault: one does.
        OSError: the folder cannot be written to.
    """
    make_folder(home)
    lock = open(home / LOCK, "a+", opener=open_lock)  # noqa: SIM115  # the caller closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        in_place = _is_in_place(lock, home / LOCK)
    except BlockingIOError:
        lock.close()
        raise EnvironmentFault(
            f"a run named {home.name!r} is in progress in {home}, or `paceline sync` sends what one has left; "
            "wait for it, or give this one another name",
            "run-in-use",
            name=home.name,
        ) from None
    except OSError:
        lock.close()
        raise
    if in_place:
        return lock
    lock.close()
    return lock_home(home)


def _is_in_place(lock: IO[str], path: Path) -> bool:
    """False if the file was removed, see `remove_unused`, between being opened and being locked."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_unused(home: Path) -> None:
    """Remove the folder of a name that nothing has come of. Its lock must be held."""
    with suppress(OSError):  # another command has just locked it again, or the error that led here is about the folder
        if [path.name for path in home.iterdir()] == [LOCK]:
            (home / LOCK).unlink()
            home.rmdir()
