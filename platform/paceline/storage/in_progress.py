"""Tells whether a run is in progress, or was abandoned by a process that is gone.

While a command works on a name, it holds the lock of the name's folder, which ends with its process. In an object store
it holds a lease, which ends when it is no longer renewed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from weakref import WeakSet

from paceline.errors import EnvironmentFault
from paceline.private_files import make_folder, open_lock
from paceline.storage.address import StoreAddress

LOCK = ".lock"
"""File in the folder of a name, which is locked while something of that name is at work."""


def is_in_progress(home: Path | StoreAddress, launch: str) -> bool:
    """Return True if a process works on a name. Where the file system has no locks, nobody can know: False.

    Args:
        home: the name's folder, or its address in an object store.
        launch: id of the launch that the run was last started by; only an object store has others.
    """
    if isinstance(home, StoreAddress):
        from paceline.storage.lease import is_held

        return is_held(home, launch)
    try:
        with (home / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_home(home: Path) -> IO[str]:
    """Keep other processes of this machine from working on a name, as long as the file is open.

    Raises:
        EnvironmentFault: one does.
        OSError: the folder cannot be written to.
    """
    make_folder(home)
    lock = open(home / LOCK, "a+", opener=open_lock)  # noqa: SIM115  # the caller closes it
    _locks.add(lock)
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


_locks: "WeakSet[IO[str]]" = WeakSet()
"""Locks that this process may hold."""


def _close_locks() -> None:
    """Close the locks in a forked process: a loader process that outlives a killed command would keep them."""
    for lock in _locks:
        lock.close()
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def nobody_works_on(home: Path) -> Iterator[bool]:
    """Yield True if no run or sweep of a name is in progress; then none can begin during the body. Else yield False.

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


def _is_in_place(lock: IO[str], path: Path) -> bool:
    """Return False if the file was removed, see `run_folder.remove_unused`, between being opened and being locked."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
