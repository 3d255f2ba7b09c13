"""Files that are still there, and whole, after a crash of the process or of the machine."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk. For files that nobody looks for yet: a crash can tear it."""
    _write(path, data, 0o666)


def write_pieces_synced(path: Path, pieces: Iterable[tuple[int, memoryview]]) -> None:
    """Write pieces of a file at their offsets and wait until they are on the disk. Other processes may write the rest
    at the same time."""
    # write-only: a network file system would else read the page around a piece, and write back stale bytes of others
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for offset, data in pieces:
            while data:
                written = os.pwrite(descriptor, data, offset)
                data, offset = data[written:], offset + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Put a file in place at once and for good: readers see the old content or the new, even after a crash.

    Only the owner may read it. Folders that are missing are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, data, 0o600)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data to an open file; one `os.write` may take only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
