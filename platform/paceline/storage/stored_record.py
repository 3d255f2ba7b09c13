"""The record of a run or a sweep in its object store: the files of `tracking/`, and a sweep's log.

Objects cannot be appended to. A journal is written again as a whole. A sweep's log is kept as parts, each named by its
offset in the file: `log.jsonl/000000000000`, `log.jsonl/000001048576`, ... Only the last part is written again when the
file has grown, so that a long log costs no more per entry than a short one.
"""

import errno
import fcntl
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from paceline.durable import write_durably
from paceline.private_files import make_folder
from paceline.storage.address import OUTCOME, TRACKING
from paceline.storage.remote_folder import RemoteFolder
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.upload_cursor import clear_store_request, is_hurried, note_stored

PART_BYTES = 1 << 20
"""Size at which a part of a log is complete."""
AT_ONCE = 8
"""Parts or records that are copied side by side."""
Stamp = tuple[int, int]
"""Size of a file and when it was changed: as long as these stay, so does the content."""


class RecordCopy:
    """The copy of a recorder's folder in the store. The journal goes last: it names the other files.

    Args:
        remote: the run's folder in the store.
        folder: the recorder's folder.
    """

    def __init__(self, remote: RemoteFolder, folder: Path) -> None:
        self._remote = remote / TRACKING
        self._folder = folder
        self._known: dict[str, Stamp] = {}
        self._copied_bytes: int | None = None
        """Bytes of the journal that the last copy has put into the store; None: no copy since `mark`."""

    @property
    def journal_bytes(self) -> int:
        """Size of the journal here."""
        file = self._folder / JOURNAL_FILE
        return file.stat().st_size if file.exists() else 0

    @property
    def is_here(self) -> bool:
        """True if this machine has a copy."""
        return (self._folder / JOURNAL_FILE).exists()

    def is_wanted(self) -> bool:
        """Return True if somebody waits for the rest of the record to be in the store."""
        return is_hurried(self._folder)

    def is_behind(self) -> bool:
        """Return True if something has changed since it was last copied."""
        return bool(self._changed()) or self._lacks_outcome()

    def push(self) -> None:
        """Copy what has changed, and take note of how much of the journal is there; see `copy`."""
        self.copy()
        self.mark()

    def push_wanted(self) -> None:
        """Do the same because somebody waits for it."""
        self.push()

    def mark(self) -> None:
        """Take note of how much of the journal is in the store, so that whoever waits for it continues.

        Raises:
            OSError: the folder cannot be written to.
        """
        if self._copied_bytes is not None:
            note_stored(self._folder, self._copied_bytes)
            self._copied_bytes = None

    def copy(self) -> None:
        """Copy what has changed. The store keeps what is missing here, except the outcome of an earlier launch.

        The folder may have been removed in mid-run, and written again in part: the rest is in the store alone.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the folder cannot be read or written to, or was removed.
        """
        clear_store_request(self._folder)
        if JOURNAL_FILE in self._known and not self.is_here:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self._folder))
        if self._lacks_outcome():
            self._remote.remove(OUTCOME)
            del self._known[OUTCOME]
        file = self._folder / JOURNAL_FILE
        # read before the others, and written after them: the store has each file that its journal names
        stamp = _stamp(file)
        journal = file.read_bytes() if file.exists() and self._known.get(JOURNAL_FILE) != stamp else None
        for name in sorted(set(self._changed()) - {JOURNAL_FILE}):
            known = _stamp(self._folder / name)
            self._remote.write(name, (self._folder / name).read_bytes())
            self._known[name] = known
        if journal is not None:
            journal = journal[: journal.rfind(b"\n") + 1]  # a line may be on its way
            self._remote.write(JOURNAL_FILE, journal)
            self._known[JOURNAL_FILE] = stamp
            self._copied_bytes = len(journal)

    def take_over(self, may_be_ahead: bool) -> bool:
        """Have the folder here be as the store's, unless it continues that record; returns True if it does.

        Args:
            may_be_ahead: whether nobody else has worked on the run since this machine has.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the folder cannot be written to.
        """
        journal = self._remote.read(JOURNAL_FILE) or b""
        here = self._folder / JOURNAL_FILE
        self._known = dict.fromkeys(self._remote.files(), (-1, -1))
        if may_be_ahead and here.exists() and _begins_with(here, journal):
            note_stored(self._folder, len(journal))
            return True
        self.replace(journal)
        return False

    def replace(self, journal: bytes | None = None) -> None:
        """Have the folder here be as the store's.

        Args:
            journal: the store's, where that is known.
        """
        names = sorted(self._remote.files())
        shutil.rmtree(self._folder, ignore_errors=True)
        make_folder(self._folder)
        for name in names:
            is_known = name == JOURNAL_FILE and journal is not None
            data = journal if is_known else self._remote.read(name)
            write_durably(self._folder / name, data or b"")
            self._known[name] = _stamp(self._folder / name)
        note_stored(self._folder, self.journal_bytes)

    def _lacks_outcome(self) -> bool:
        """Return True if the outcome that the store has was removed here: training has begun again."""
        return OUTCOME in self._known and not (self._folder / OUTCOME).exists()

    def _present(self) -> dict[str, Stamp]:
        files = [path for path in self._folder.rglob("*") if path.is_file()] if self._folder.exists() else []
        names = {path.relative_to(self._folder).as_posix(): path for path in files}
        return {
            name: _stamp(path)
            for name, path in names.items()
            if not any(part.startswith(".") for part in name.split("/"))
        }

    def _changed(self) -> list[str]:
        return [name for name, stamp in self._present().items() if self._known.get(name) != stamp]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return -2, -2  # it has just been replaced, or removed
    return found.st_size, found.st_mtime_ns


def _begins_with(file: Path, data: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(data)) == data


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
