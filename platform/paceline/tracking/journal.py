"""An append-only file of JSON lines, whose acknowledged entries are still there after a crash."""

import fcntl
import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.durable import sync_folder, write_all
from paceline.private_files import make_folder, open_private

logger = logging.getLogger(__name__)

JOURNAL_FILE = "journal.jsonl"
COPY_BYTES = 1 << 20
"""Part of a removed journal that is written again at once."""
TAIL_BYTES = 4096
"""Part that is read at once in search of the beginning of a line; most lines are far shorter."""

STATUSES = ("SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED")
"""MLflow's statuses of a run."""
LARGEST = 2**63 - 1
"""Steps, times and numbers are stored in 64 bits."""

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    sequence: int
    """1 for the first entry, and one more for each that follows."""
    kind: str
    """Kind of the content: `point`, `tags`, `artifact`, `datasets`, `model` or `status`."""
    content: Mapping[str, Any]
    """JSON values."""
    end: int
    """Offset in the file, in bytes, of the line that follows."""


class Journal:
    """The file that every entry is in before it is sent anywhere else. Any process may read it.

    One process appends, as a rule. Where a command has just taken over from another one that has not ended yet, both
    may: each entry is written as a whole, and who appends has first read what others have added. A crash can tear
    the line that was being written. Readers ignore a last line without its end, and the next `append` cuts it off, or
    ends it where the file system has no locks: there, it may be the half of another process's line that is visible yet.

    Args:
        path: of the file; its folder is made when it is first appended to.
        on_foreign: is given each entry that something else than this object has added, before the next `append`.
        is_whole: returns True if an entry has all that its kind needs, given the kind and the content; else it is
            damaged. By default the check of a run's journal.
    """

    def __init__(
        self,
        path: Path,
        on_foreign: Callable[[Entry], object] | None = None,
        is_whole: Callable[[str, Content], bool] | None = None,
    ) -> None:
        self.path = path
        self._is_whole = is_whole or _is_whole
        self.size = 0
        """Bytes that are durable; only as far may they be handed on. 0 until the journal was scanned or appended to."""
        self.last_sequence = 0
        """Number of the newest durable entry."""
        self.was_removed = False
        """True if the file was removed, or replaced, since it was opened; then it was written again."""
        self._on_foreign = on_foreign
        self._descriptor: int | None = None
        self._removed: int | None = None
        """The removed file, until what it has is in the new one."""
        self._lock = threading.RLock()
        self._depth = 0
        self._is_locked = False
        self._is_torn = False

    def append(self, items: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add entries of a kind and its content; they are on disk when this returns.

        Raises:
            OSError: the disk is full or gone. Nothing of `items` was added then.
        """
        if not items:
            return
        with self.alone() as descriptor:
            lines = [
                json.dumps({"n": number, "kind": kind, **content}, separators=(",", ":"))
                for number, (kind, content) in enumerate(items, self.last_sequence + 1)
            ]
            data = ("\n" * self._is_torn + "\n".join(lines) + "\n").encode()
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                self._cut(descriptor)
                raise
            self.last_sequence += len(items)
            self.size = os.lseek(descriptor, 0, os.SEEK_CUR)  # the end of what was written

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Keep others from appending during the body. All that there is has been read and is durable. Gives the file.

        Raises:
            OSError: the file cannot be written to.
        """
        with self._lock:
            descriptor = self._open()
            if not self._depth:
                if not _is_in_place(descriptor, self.path):
                    descriptor = self._open_again()
                self._is_locked = _lock(descriptor, fcntl.LOCK_EX)
            self._depth += 1
            try:
                if self._removed is not None:
                    self._restore(descriptor, self._removed)
                if self._depth == 1:
                    self._catch_up(descriptor)
                yield descriptor
            finally:
                self._depth -= 1
                if not self._depth:
                    _lock(descriptor, fcntl.LOCK_UN)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Yield the entries between two offsets (`Entry.end`, `Journal.size`), by default all complete ones."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(start)
            offset = start
            for line in file:
                offset += len(line)
                if not line.endswith(b"\n") or (stop is not None and offset > stop):
                    return
                if line == b"\n":
                    continue
                entry = self._parse(line, offset)
                if entry is None:
                    logger.warning("%s: a damaged line before byte %d is ignored", self.path, offset)
                else:
                    yield entry

    def number_before(self, offset: int) -> int | None:
        """Return the number of the entry that ends at an offset; 0 at the beginning, None where no entry ends."""
        if offset == 0:
            return 0
        with self.path.open("rb") as file:
            if offset > os.fstat(file.fileno()).st_size:
                return None
            line, begin = b"", offset
            while begin > 0 and b"\n" not in line[:-1]:
                begin = max(0, begin - TAIL_BYTES)
                file.seek(begin)
                line = file.read(offset - begin)
        entry = self._parse(line[line.rfind(b"\n", 0, -1) + 1 :], offset) if line.endswith(b"\n") else None
        return None if entry is None else entry.sequence

    def scan(self) -> Iterator[Entry]:
        """Read everything there is, and take note of where it ends."""
        self.size = self.last_sequence = 0
        for entry in self.read():
            self.size, self.last_sequence = entry.end, entry.sequence
            yield entry

    def close(self) -> None:
        """Release the file. A later `append` opens it again."""
        with self._lock:
            for descriptor in (self._descriptor, self._removed):
                if descriptor is not None:
                    os.close(descriptor)
            self._descriptor = self._removed = None

    def _open(self) -> int:
        if self._descriptor is None:
            make_folder(self.path.parent)
            self._descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            sync_folder(self.path.parent)
        return self._descriptor

    def _open_again(self) -> int:
        """Open the file that is under the name: nobody will ever read what is added to one that was removed."""
        old, self._descriptor = self._descriptor, None
        assert old is not None
        try:
            opened = self._open()
        except OSError:
            self._descriptor = old
            raise
        if self._removed is None:
            self._removed = old
        else:  # the new file was removed before it had all
            os.close(old)
        return opened

    def _restore(self, descriptor: int, removed: int) -> None:
        """Write what the removed file has into the new one, unless another process has done so, and close it.

        Raises:
            OSError: the new file does not take it. The removed one is kept for the next attempt.
        """
        if not self.was_removed:
            logger.warning("%s was removed or replaced, and is written again", self.path)
        self.was_removed = True
        if os.fstat(descriptor).st_size:
            self.size = self.last_sequence = 0  # all that it has is to be read
        else:
            _lock(removed, fcntl.LOCK_EX)  # who has not noticed yet may still append to it
            try:
                _copy(removed, descriptor)
            except OSError:
                _lock(removed, fcntl.LOCK_UN)
                if self._is_locked:  # else it may be another process that writes
                    os.ftruncate(descriptor, 0)  # or a part would count as the whole
                raise
        os.close(removed)
        self._removed = None

    def _catch_up(self, descriptor: int) -> None:
        """Read what has been added since this object last looked, and cut off what a crash has torn."""
        self._is_torn = False
        size = os.fstat(descriptor).st_size
        if size == self.size:
            return
        if size < self.size:  # somebody has cut it
            self.size = self.last_sequence = 0
        before = self.size
        for entry in self.read(self.size):
            self.size, self.last_sequence = entry.end, entry.sequence
            if self._on_foreign is not None:
                self._on_foreign(entry)
        if self.size > before:
            os.fsync(descriptor)  # whoever wrote it may have died before it did so
        if size > self.size:
            self._cut(descriptor)

    def _cut(self, descriptor: int) -> None:
        """Remove what is behind the last whole entry. Without a lock that may be what another process is writing: then
        the next entry begins a line of its own behind it."""
        if self._is_locked:
            os.ftruncate(descriptor, self.size)
        else:
            self._is_torn = True

    def _parse(self, line: bytes, end: int) -> Entry | None:
        """Return the entry of a line; None for a damaged one."""
        try:
            content = json.loads(line)
            number, kind = content.pop("n"), content.pop("kind")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not is_count(number) or not isinstance(kind, str) or not self._is_whole(kind, content):
            return None
        return Entry(number, kind, content, end)


def _copy(source: int, target: int) -> None:
    offset = 0
    while data := os.pread(source, COPY_BYTES, offset):
        write_all(target, data)
        offset += len(data)
    os.fsync(target)


def _is_in_place(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def can_lock(folder: Path) -> bool:
    """Return True if files in a folder can be locked: only then may two processes write to the same journal."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False


def _lock(descriptor: int, kind: int) -> bool:
    """Return True if the lock was taken; on a file system without locks, a single process appends."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True


def _is_whole(kind: str, content: Content) -> bool:
    """Return True if an entry of a run's journal has all that its kind needs, or is of an unknown kind."""
    check = _CHECKS.get(kind)
    return check is None or check(content)


def is_count(value: object) -> bool:
    """Return True for a whole number that can be stored, and is not below 0."""
    return type(value) is int and 0 <= value <= LARGEST


def is_number(value: object) -> bool:
    """Return True for a number, or the text of one that JSON does not know: `nan`, `inf`, `-inf`."""
    if type(value) is float:
        return True
    try:
        return type(value) in (int, str) and float(value) is not None  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return False


def is_artifact_path(path: object) -> bool:
    """Return True for the path of a file within a run's folder of artifacts."""
    if not isinstance(path, str) or "\0" in path:
        return False
    place = PurePosixPath(path)
    return bool(place.name) and not place.is_absolute() and ".." not in place.parts


def _is_point(content: Content) -> bool:
    return (
        isinstance(content.get("key"), str)
        and is_number(content.get("value"))
        and is_count(content.get("step"))
        and is_count(content.get("timestamp_ms"))
    )


def _is_tags(content: Content) -> bool:
    tags = content.get("tags")
    return isinstance(tags, dict) and all(isinstance(value, str) for value in tags.values())


def _is_status(content: Content) -> bool:
    return content.get("status") in STATUSES and is_count(content.get("time_ms"))


def _is_datasets(content: Content) -> bool:
    sets = content.get("sets")
    if not isinstance(sets, dict) or not isinstance(content.get("source"), str):
        return False
    return all(isinstance(each, dict) and {"name", "size", "fingerprint"} <= each.keys() for each in sets.values())


def _is_model(content: Content) -> bool:
    texts = all(isinstance(content.get(key), str) for key in ("uri", "sha256", "run_id"))
    values = content.get("metrics")
    return texts and is_count(content.get("step")) and isinstance(values, dict) and all(map(_is_pair, values.values()))


def _is_pair(value: object) -> bool:
    """A value, and when it was measured."""
    return isinstance(value, list) and len(value) == 2 and is_number(value[0]) and is_count(value[1])


_CHECKS: Mapping[str, Callable[[Content], bool]] = {
    "point": _is_point,
    "tags": _is_tags,
    "artifact": lambda content: is_artifact_path(content.get("path")),
    "status": _is_status,
    "datasets": _is_datasets,
    "model": _is_model,
}
