"""A run's record in its object store: what lies in `tracking/`."""

import errno
import shutil
from pathlib import Path

from paceline.durable import write_durably
from paceline.private_files import make_folder
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.working_copies import OUTCOME, TRACKING
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.stored_length import is_heard, is_hurried, note_stored

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
        is_heard(self._folder)
        if JOURNAL_FILE in self._known and not self.is_here:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self._folder))
        if self._lacks_outcome():
            self._remote.remove(OUTCOME)
            del self._known[OUTCOME]
        for name in sorted(self._changed(), key=lambda name: (name == JOURNAL_FILE, name)):
            stamp = _stamp(self._folder / name)
            data = (self._folder / name).read_bytes()
            if name == JOURNAL_FILE:
                data = data[: data.rfind(b"\n") + 1]  # a line may be on its way
            self._remote.write(name, data)
            self._known[name] = stamp
            if name == JOURNAL_FILE:
                self._copied_bytes = len(data)

    def take_over(self, may_be_ahead: bool) -> bool:
        """Have the folder here be as the store's, unless it is the same record, and has only gone on; whether it is.

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
