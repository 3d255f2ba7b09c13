"""The part of a journal that MLflow has, should have, and may have.

A run in an object store that continues elsewhere has what the store has. MLflow must not know more than that, or it
would get points a second time. The process that keeps the store's copy and the one that uploads meet in the run's
folder: in the files `MARK` and `WANTED`.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._compat.mlflow import newest_steps
from paceline.private_files import make_folder, write_private
from paceline.tracking.journal import JOURNAL_FILE, Content, Journal, is_artifact_path, is_count
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.tracking_uri import run_url

if TYPE_CHECKING:
    from mlflow.entities import Run

CURSOR_FILE = "uploaded.json"
MOST_REFUSED = 100
"""Refused entries that are kept by name. If there are more, it is not known what MLflow should have."""
MARK = ".stored"
"""Holds how many bytes of the journal are in the store. A run that is in no store has no such file."""
WANTED = ".wanted"
"""The file exists when somebody waits for the rest."""


@dataclass(frozen=True)
class UploadReport:
    """Progress of the upload of a run's record."""

    url: str | None
    """The run's page; None while there is no run in MLflow yet."""
    experiment_id: str | None
    run_id: str | None
    """MLflow's own id of the run."""
    unsent: int
    """Entries of the journal (points, tags, artifacts, status) that MLflow does not have yet."""
    error: str | None
    """Reason of the last failure; None when the last attempt succeeded."""
    sent: int = 0
    """Entries that this process has sent, some of them perhaps again."""


@dataclass
class UploadCursor:
    """The part of the journal that MLflow has. Kept in a file, so that a later process resumes from there."""

    run_id: str = ""
    """MLflow's id of the run that the rest is about."""
    experiment_id: str = ""
    offset: int = 0
    """Bytes of the journal that were uploaded."""
    sequence: int = 0
    """Number of the last entry that was uploaded."""
    deferred: list[str] = field(default_factory=list)
    """Artifacts before `offset` that were not uploaded yet."""
    refused: list[str] = field(default_factory=list)
    """Entries that MLflow will never take, and why."""
    diverged: bool = False
    """True once an infinite value was met; only the first one is named in a tag."""
    error: str = ""
    """Reason of the last failure; empty when the last attempt succeeded."""

    @classmethod
    def load(cls, path: Path) -> "UploadCursor":
        """Read the file; a missing or damaged one means starting over, which MLflow takes without doubling."""
        try:
            found = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls()
        return found if found._is_whole() else cls()

    def _is_whole(self) -> bool:
        """Return True if each field is of its type."""
        texts = (self.run_id, self.experiment_id, self.error)
        lists = isinstance(self.deferred, list) and isinstance(self.refused, list)
        return (
            all(isinstance(each, str) for each in texts)
            and is_count(self.offset)
            and is_count(self.sequence)
            and lists
            and all(is_artifact_path(each) for each in self.deferred)
            and all(isinstance(each, str) for each in self.refused)
            and type(self.diverged) is bool
        )

    def fits(self, journal: Journal) -> bool:
        """Return True if the journal holds what was uploaded. One that was put back from a copy, or has lost its end
        with the machine's power, may not: then the numbers here are not about it.

        Raises:
            OSError: the journal cannot be read.
        """
        return self.offset <= journal.size and journal.number_before(self.offset) == self.sequence

    def save(self, path: Path) -> None:
        """Replace the file. Not fsynced: an older cursor only means sending some entries again."""
        temporary = path.with_name(f".{path.name}.new")
        write_private(temporary, json.dumps(asdict(self)).encode())
        temporary.replace(path)


def report_of(cursor: UploadCursor, uri: str, journal: Journal, error: str | None) -> UploadReport:
    """Return the progress by what MLflow has of a journal. One that has become shorter counts as unsent."""
    shipped = cursor.sequence if cursor.offset <= _size(journal.path) else 0
    unsent = max(0, journal.last_sequence - shipped) + len(cursor.deferred)
    url = run_url(uri, cursor.experiment_id, cursor.run_id) if cursor.run_id else None
    return UploadReport(url, cursor.experiment_id or None, cursor.run_id or None, unsent, error)


def unsent(folder: Path) -> int:
    """Return the number of entries in a recorder's folder that MLflow does not have, going by what was sent before."""
    journal = Journal(folder / JOURNAL_FILE)
    for _ in journal.scan():
        pass
    return report_of(UploadCursor.load(folder / CURSOR_FILE), "", journal, None).unsent


class UploadedState:
    """The state of the run that MLflow should have by now: a store restored from a backup has lost the newest of it.

    Reads the uploaded part of the journal, each time from where it stopped the last time.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._status = ""
        self._steps: dict[str, int] = {}

    def is_lost(self, run: "Run", journal: Journal, offset: int, refused: Sequence[str]) -> bool:
        """Return True if MLflow's run lacks points that were uploaded, or has another status.

        Args:
            offset: end of the uploaded part of the journal.
            refused: what MLflow will never take, as `MlflowRun.log` tells it.
        """
        self._read(journal, offset)
        if self._status and run.info.status != self._status:
            return True
        if len(refused) >= MOST_REFUSED:
            return False
        has = newest_steps(run)
        if has is None:
            return False
        return any(has.get(key, -1) < step for key, step in self._steps.items() if not _is_among(key, refused))

    def _read(self, journal: Journal, offset: int) -> None:
        if offset < self._offset:
            self._offset, self._status, self._steps = 0, "", {}
        for entry in journal.read(self._offset, offset):
            if entry.kind == "status":
                self._status = entry.content["status"]
            elif entry.kind == "point":
                self._take(entry.content)
        self._offset = offset

    def _take(self, content: Content) -> None:
        point = MetricPoint.from_json(content)
        if not point.is_infinite:  # MLflow is not sent these
            self._steps[point.key] = max(point.step, self._steps.get(point.key, -1))


def stored_bytes(folder: Path) -> int | None:
    """Return the bytes of the journal in a recorder's folder that are in the object store; None for a run in none."""
    try:
        return int((folder / MARK).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return 0


def note_stored(folder: Path, size: int) -> None:
    """Note that so many bytes are in the store."""
    make_folder(folder)
    temporary = folder / f"{MARK}.new"
    write_private(temporary, str(size).encode())
    os.replace(temporary, folder / MARK)


def hurry(folder: Path) -> None:
    """Have the rest put into the store soon."""
    with suppress(OSError):
        write_private(folder / WANTED, b"")


def is_hurried(folder: Path) -> bool:
    """Return True if somebody waits for the rest."""
    return (folder / WANTED).exists()


def clear_store_request(folder: Path) -> None:
    """Note that all there is by now is about to be put into the store."""
    (folder / WANTED).unlink(missing_ok=True)


def _is_among(key: str, refused: Sequence[str]) -> bool:
    return any(each.startswith(f"{key[:100]} at step ") for each in refused)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
