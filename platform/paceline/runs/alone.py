"""One `paceline sync` at a time sends a record; others may send other records of the same name meanwhile."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.private_files import open_lock

LOCK_FILE = ".sync"


@contextmanager
def alone_with(tracking: Path) -> Iterator[bool]:
    """Yield True if nobody else sends the record of a folder, and keep others from it in the body. Where the file
    system has no locks, nobody can know.

    Raises:
        OSError: the folder cannot be written to.
    """
    with open(tracking / LOCK_FILE, "a", opener=open_lock) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # no locks here
            pass
        yield True
