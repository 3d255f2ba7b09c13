"""Brings the journal to MLflow, in a thread of its own, whatever MLflow does meanwhile."""

import json
import logging
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from paceline.tracking import database, metrics
from paceline.tracking.connection import Connection, shared
from paceline.tracking.journal import Entry, Journal
from paceline.tracking.points import Point
from paceline.tracking.record import TAG_LENGTH, RunRecord
from paceline.tracking.redact import redact
from paceline.tracking.remote import RemoteRun, import_mlflow, is_refused
from paceline.tracking.store import is_sqlite, run_url, sqlite_file

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
ENTRIES_PER_BATCH = 1000
"""As many points fit one of MLflow's requests."""
PARENT_POLL_SECONDS = 0.2
PARENT_SECONDS = 10.0
"""How long a run waits for the parent that another recorder is about to open, before that counts as a failure."""
CURSOR_FILE = "shipped.json"
ARTIFACT_FOLDER = "artifacts"


@dataclass(frozen=True)
class ShipReport:
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


@dataclass
class Cursor:
    """What MLflow has of the journal. Kept in a file, so that a later process goes on from there."""

    run_id: str = ""
    """MLflow's id of the run that the rest is about."""
    experiment_id: str = ""
    offset: int = 0
    """Bytes of the journal that were shipped."""
    sequence: int = 0
    """Number of the last entry that was shipped."""
    deferred: list[str] = field(default_factory=list)
    """Artifacts before `offset` that could not be uploaded yet."""
    refused: list[str] = field(default_factory=list)
    """What MLflow will never take, and why."""
    diverged: bool = False
    """Whether an infinite value was met; only the first one is named in a tag."""

    @classmethod
    def load(cls, path: Path) -> "Cursor":
        """Read the file; a missing or damaged one means starting over, which MLflow takes without doubling."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Replace the file. Not fsynced: an older cursor only means sending some entries again."""
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


class Shipper:
    """Sends what the journal holds; all methods with an underscore run in its thread."""

    def __init__(self, folder: Path, record: RunRecord, journal: Journal) -> None:
        self._folder = folder
        self._record = record
        self._journal = journal
        self._cursor = Cursor.load(folder / CURSOR_FILE)
        self._connection: Connection | None = None
        self._remote: RemoteRun | None = None
        self._failures = 0
        self._error: str | None = None
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-shipping", daemon=True)

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, timeout_seconds: float) -> ShipReport:
        """Send what is left, wait for it no longer than the timeout, and end the thread."""
        self._finishing.set()
        self._thread.join(timeout_seconds)
        self._abandoned.set()
        report = self.report()
        if report.unsent and report.error is None:
            return replace(report, error=f"not everything was sent within {timeout_seconds:g} s")
        return report

    def report(self) -> ShipReport:
        """How far things are. May be called from any thread."""
        cursor = self._cursor
        unsent = self._journal.last_sequence - cursor.sequence + len(cursor.deferred)
        known = bool(cursor.run_id)
        url = run_url(self._record.uri, cursor.experiment_id, cursor.run_id) if known else None
        return ShipReport(url, cursor.experiment_id or None, cursor.run_id or None, unsent, self._error)

    def _run(self) -> None:
        while not self._abandoned.is_set():
            finishing = self._finishing.is_set()
            succeeded = self._attempt()
            if finishing and succeeded:
                return
            wake = self._abandoned if finishing else self._finishing
            wake.wait(INTERVAL_SECONDS if succeeded else self._backoff())

    def _attempt(self) -> bool:
        try:
            self._ship()
        except Exception as error:
            self._note_failure(error)
            return False
        if self._error:
            logger.info("metrics reach MLflow again, nothing is missing")
        self._failures, self._error = 0, None
        return True

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._remote = None  # found again next time: the server may have lost the run, or be another one
        if self._connection is not None:
            self._connection.forget()
        previous, self._error = self._error, redact(f"{type(error).__name__}: {error}").strip()[:1000]
        if previous is None:
            logger.warning(
                "metrics do not reach MLflow for now, they are kept in %s: %s", self._journal.path, self._error
            )

    def _backoff(self) -> float:
        longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures - 1, 16))
        return longest * random.uniform(0.5, 1.0)

    def _ship(self) -> None:
        if self._remote is None:
            self._remote = self._open()
        for batch in self._batches():
            self._send(batch, self._remote)
            self._cursor.offset, self._cursor.sequence = batch[-1].end, batch[-1].sequence
            self._cursor.save(self._folder / CURSOR_FILE)
            if self._abandoned.is_set():
                return
        self._log([], {}, self._remote)  # params are not to wait for the first point
        self._send_deferred(self._remote)

    def _open(self) -> RemoteRun:
        creation = self._start_database()
        import_mlflow()  # meanwhile: each takes seconds
        if creation is not None:
            self._await(creation)
        self._connection = shared(self._record.uri)
        remote = RemoteRun.open(self._record, self._connection, self._await_parent(self._connection))
        if remote.run_id != self._cursor.run_id:  # another store, or the run was deleted: it gets everything
            self._cursor = Cursor(remote.run_id, remote.experiment_id)
            self._cursor.save(self._folder / CURSOR_FILE)
        return remote

    def _start_database(self) -> "subprocess.Popen[bytes] | None":
        file = sqlite_file(self._record.uri) if is_sqlite(self._record.uri) else None
        return None if file is None else database.start_creating(file)

    def _await(self, creation: "subprocess.Popen[bytes]") -> None:
        while creation.poll() is None and not self._abandoned.wait(0.1):
            pass
        database.end(creation)
        _, errors = creation.communicate()
        if creation.returncode:
            reason = errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit {creation.returncode}"
            raise RuntimeError(f"creating the MLflow database failed: {reason}")

    def _await_parent(self, connection: Connection) -> str | None:
        """MLflow's id of the parent; None for a run that has none."""
        if not self._record.parent:
            return None
        deadline = time.monotonic() + PARENT_SECONDS
        while (found := connection.run_id(self._record, self._record.parent)) is None:
            if time.monotonic() > deadline or self._abandoned.wait(PARENT_POLL_SECONDS):
                raise RuntimeError(f"the parent run {self._record.parent!r} is not in MLflow")
        return found

    def _batches(self) -> Iterator[list[Entry]]:
        """Consecutive entries that go together, since each request costs; a status is the last of its batch."""
        batch: list[Entry] = []
        for entry in self._journal.read(self._cursor.offset, self._journal.size):
            batch.append(entry)
            if entry.kind == "status" or len(batch) == ENTRIES_PER_BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def _send(self, batch: list[Entry], remote: RemoteRun) -> None:
        points = [Point.from_json(entry.content) for entry in batch if entry.kind == "point"]
        tags: dict[str, str] = {}
        for entry in batch:
            if entry.kind == "tags":
                tags |= entry.content["tags"]
        self._log(points, tags, remote)
        # Uploads go last: artifacts may live elsewhere, and trouble there must not hold up the metrics.
        paths = [entry.content["path"] for entry in batch if entry.kind == "artifact"]
        self._cursor.deferred = list(dict.fromkeys([*self._cursor.deferred, *paths]))
        if batch[-1].kind == "status":
            remote.set_status(batch[-1].content["status"], batch[-1].content["time_ms"])

    def _log(self, points: list[Point], tags: dict[str, str], remote: RemoteRun) -> None:
        infinite = None if self._cursor.diverged else next((point for point in points if point.is_infinite), None)
        if infinite:
            tags[metrics.DIVERGED] = f"{infinite.key} is {infinite.value} at step {infinite.step}"
        refused = remote.log([point for point in points if not point.is_infinite], tags)
        self._cursor.diverged = self._cursor.diverged or infinite is not None
        self._note_refused(refused, remote)

    def _send_deferred(self, remote: RemoteRun) -> None:
        trouble: Exception | None = None
        for path in list(self._cursor.deferred):
            try:
                remote.log_artifact(self._folder / ARTIFACT_FOLDER / path, path)
            except Exception as error:
                if not is_refused(error):
                    trouble = trouble or error
                    continue
                self._note_refused([f"artifact {path}: {redact(str(error))[:300]}"], remote)
            self._cursor.deferred.remove(path)
            self._cursor.save(self._folder / CURSOR_FILE)
        if trouble is not None:
            raise trouble

    def _note_refused(self, refused: list[str], remote: RemoteRun) -> None:
        if not refused:
            return
        logger.warning("MLflow refuses %d entries, the first is %s", len(refused), refused[0])
        self._cursor.refused = list(dict.fromkeys([*self._cursor.refused, *refused]))[-100:]
        remote.log([], {metrics.NOT_RECORDED: "\n".join(self._cursor.refused)[:TAG_LENGTH]})
