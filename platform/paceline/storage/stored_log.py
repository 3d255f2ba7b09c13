"""An append-only file that is kept in an object store as parts, since objects cannot be appended to.

`log.jsonl/000000000000`, `log.jsonl/000001048576`, ...: each part is named by its offset in the file. Only the last one
is written again when the file has grown, so that a long log costs no more per entry than a short one.
"""

import fcntl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from paceline.durable import write_durably
from paceline.storage.remote_folder import RemoteFolder

PART_BYTES = 1 << 20
"""Size at which a part is complete."""
AT_ONCE = 8
"""Parts that are read side by side."""


class StoredLog:
    """The copy of an append-only file in a store.

    Args:
        remote: the folder of the parts in the store.
        file: the file on this machine.
    """

    def __init__(self, remote: RemoteFolder, file: Path) -> None:
        self._remote = remote
        self._file = file
        self._begin = 0
        """Offset of the part that is written next."""
        self.stored_bytes = 0
        """Bytes of the file that are in the store."""

    def read(self, start: int) -> bytes:
        """Return the complete lines that the file on this machine has from an offset on.

        Lines that are being appended are waited for: on a full disk they are cut off again.
        """
        if not self._file.exists():
            return b""
        with self._file.open("rb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(start)
            data = file.read()
        return data[: data.rfind(b"\n") + 1]

    def push(self, size_bytes: int) -> None:
        """Have the store hold the file up to an offset, at which a line ends.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the file cannot be read.
        """
        while self.stored_bytes < size_bytes:
            end = min(size_bytes, self._begin + PART_BYTES)
            with self._file.open("rb") as file:
                file.seek(self._begin)
                data = file.read(end - self._begin)
            self._remote.write(_part_name(self._begin), data)
            self.stored_bytes = end
            if end - self._begin >= PART_BYTES:
                self._begin = end

    def take_over(self, may_be_ahead: bool) -> bool:
        """Have the file on this machine be as the store's, unless it continues that; returns True if it does.

        Args:
            may_be_ahead: nobody else has worked on the sweep since this machine has.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the file cannot be written to.
        """
        parts = self._remote.files()
        data = joined(self._remote, parts)
        data = data[: data.rfind(b"\n") + 1]  # a push that was cut short ends within a line
        self.stored_bytes = len(data)
        self._begin = max((int(name) for name in parts if int(name) <= len(data)), default=0)
        if self.stored_bytes - self._begin >= PART_BYTES:
            self._begin = self.stored_bytes
        if may_be_ahead and self._file.exists() and self._file.read_bytes().startswith(data):
            return True
        write_durably(self._file, data)
        return False


def joined(remote: RemoteFolder, parts: Mapping[str, int] | None = None) -> bytes:
    """Return the content of a file that is kept as parts; empty where there is none.

    Args:
        parts: size in bytes of each, where that is known.

    Raises:
        StoreFault: the store cannot be used.
    """
    names = sorted(remote.files() if parts is None else parts)
    with ThreadPoolExecutor(AT_ONCE, "read-log") as threads:
        return b"".join(data or b"" for data in threads.map(remote.read, names))


def _part_name(offset: int) -> str:
    return f"{offset:012d}"
