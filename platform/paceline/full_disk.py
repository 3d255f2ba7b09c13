"""Errors of a disk that takes no more: it is full, over the user's quota, or has become read-only."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_TEXTS = tuple(map(os.strerror, ERRNOS))
_SHARED_MEMORY = "/dev/shm"
_PROBE_BYTES = 1 << 20


def is_full_disk(error: BaseException | None) -> bool:
    """Return True if an error, or one that it comes from, is that of a disk that takes no more."""
    return full_disk_error(error) is not None


def full_disk_error(error: BaseException | None) -> BaseException | None:
    """Return the error of a disk that takes no more, among an error and those that it comes from.

    Shared memory that is full does not count: it is memory.
    """
    return next(filter(_means_full_disk, causes(error)), None)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it comes from, each once."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            yield one
            seen.add(id(one))
            left += [one.__cause__, one.__context__, getattr(one, "cause", None)]  # Ray's errors have the latter


def has_room(folder: Path) -> bool:
    """Return False if a file of 1 MiB cannot be written to a folder for want of room. Waits for the disk."""
    file = folder / f".room-{uuid4().hex}"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(bytes(_PROBE_BYTES))
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            file.unlink()
    except OSError as error:
        return not is_full_disk(error)
    return True


def _means_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in ERRNOS and not str(error.filename or "").startswith(_SHARED_MEMORY)
    if isinstance(error, OSError):  # about several files, as those of `shutil.copytree`
        return any(text in str(error) for text in _TEXTS) and _SHARED_MEMORY not in str(error)
    name = type(error).__name__  # of libraries that not every process has imported
    return name == "OutOfDiskError" or (name == "SafetensorError" and any(text in str(error) for text in _TEXTS))
