"""Position in the journal up to which MLflow has it, and the report of an upload."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paceline.private_files import write_private
from paceline.tracking.journal import Journal
from paceline.tracking.journal_entries import is_artifact_path, is_count
from paceline.tracking.tracking_uri import run_url

CURSOR_FILE = "uploaded.json"


@dataclass(frozen=True)
class UploadReport:
    """How far a run's record has come into MLflow."""

    url: str | None
    """The run's page; None while there is no run in MLflow yet."""
    experiment_id: str | None
    run_id: str | None
    """MLflow's own id of the run."""
    unsent: int
    """Entries of the journal (points, tags, artifacts, status) that MLflow does not have yet."""
    error: str | None
    """Why the last attempt failed; None when it did not."""
    sent: int = 0
    """Entries that this process has sent, some of them perhaps once more."""


@dataclass
class UploadCursor:
    """What MLflow has of the journal. Kept in a file, so that a later process resumes from there."""

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
    """What MLflow will never take, and why."""
    diverged: bool = False
    """Whether an infinite value was met; only the first one is named in a tag."""
    error: str = ""
    """Why the last attempt failed; empty when it did not."""

    @classmethod
    def load(cls, path: Path) -> "UploadCursor":
        """Read the file; a missing or damaged one means starting over, which MLflow takes without doubling."""
        try:
            found = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls()
        return found if found._is_whole() else cls()

    def _is_whole(self) -> bool:
        """Whether each field is what it is to be."""
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
        """Whether the journal holds what was uploaded. One that was put back from a copy, or has lost its end with the
        machine's power, may not: then the numbers here say nothing of it.

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
    """How far things are, going by what MLflow has of a journal. One that has become shorter counts as unsent."""
    shipped = cursor.sequence if cursor.offset <= _size(journal.path) else 0
    unsent = max(0, journal.last_sequence - shipped) + len(cursor.deferred)
    url = run_url(uri, cursor.experiment_id, cursor.run_id) if cursor.run_id else None
    return UploadReport(url, cursor.experiment_id or None, cursor.run_id or None, unsent, error)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
