"""Files that are still there, and whole, after a crash of the process or of the machine."""

import os
from collections.abc import Iterable
from pathlib import Path

from paceline.private_files import make_folder, open_private


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk. For files that nobody looks for yet: a crash can tear it."""
    _write(path, data)


def write_pieces_synced(path: Path, pieces: Iterable[tuple[int, memoryview]]) -> None:
    """Write pieces of a file at their offsets and wait until they are on the disk. Other processes may write the rest
    at the same time."""
    # write-only: a network file system would else read the page around a piece, and write back stale bytes of others
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
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

    Folders that are missing are made.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, data)
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


def _write(path: Path, data: bytes) -> None:
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
