"""Uploads the journal to MLflow in a thread of its own, whatever MLflow does meanwhile."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from paceline.tracking import metrics, mlflow_database
from paceline.tracking.artifact_uploads import ArtifactUploads, put_off
from paceline.tracking.backoff import Backoff
from paceline.tracking.datasets_and_models import send_extras
from paceline.tracking.journal import Entry, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_connection import Connection, import_mlflow, shared
from paceline.tracking.mlflow_probe import cause_text, is_silence
from paceline.tracking.mlflow_run import MlflowRun
from paceline.tracking.run_record import TAG_LENGTH, RunRecord
from paceline.tracking.tracking_uri import sqlite_file
from paceline.tracking.upload_cursor import (
    CURSOR_FILE,
    MOST_REFUSED,
    UploadCursor,
    UploadedState,
    UploadReport,
    hurry,
    report_of,
    stored_bytes,
)

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
FIRST_SECONDS = 1.0
"""Time that a trial of a sweep has before it is first sent: one that has ended by then is sent at once, as a whole."""
POLL_SECONDS = 0.1
ENTRIES_PER_BATCH = 1000
"""Most points of one of MLflow's requests."""
OPENING_SECONDS = 120.0
"""Time that importing MLflow, and creating a database, may take on a busy machine."""


class FolderTrouble(OSError):
    """The run's own folder cannot be read or written to; MLflow is not the cause."""


class MlflowUploader:
    """Sends what the journal holds, and adds nothing to it; all methods with an underscore run in its thread."""

    def __init__(self, folder: Path, record: RunRecord, journal: Journal, is_new: bool = False) -> None:
        """Args:
        is_new: True if nothing can have been sent before, so that the run need not be looked for.
        """
        self._folder = folder
        self._record = record
        self._journal = journal
        self._cursor = UploadCursor.load(folder / CURSOR_FILE)
        self._connection: Connection | None = None
        self._remote: MlflowRun | None = None
        self._uploaded = UploadedState()
        self._was_lost = False
        """True if MLflow was found to lack a part of what it was sent."""
        self._waits_for_store = False
        """True if the journal holds more than the run's object store has."""
        self._is_stored = stored_bytes(folder) is not None
        """True if the run is in an object store."""
        self.is_new = is_new and not self._is_stored
        """True until it is attempted to create the run; in an object store, another machine may have done so."""
        self._uploads = ArtifactUploads(folder, self._save_cursor, self._note_refused)
        self._backoff = Backoff()
        self._error: str | None = None
        self._complete = False
        self.sent = 0
        """Entries of the journal that were sent, some of them perhaps again."""
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-upload", daemon=True)
        self._predecessor: MlflowUploader | None = None

    def start(self) -> None:
        """Start the thread; a second call does nothing, unless there was no room for a thread the first time."""
        if self._thread.ident is not None or self._abandoned.is_set():
            return
        self._predecessor = _at_work.get(self._folder)
        if self._predecessor is not None:
            self._predecessor.abandon()  # whoever had this record before has left it
        try:
            self._thread.start()
        except RuntimeError as error:
            self._error = f"the upload thread could not be started: {error}"
        else:
            _at_work[self._folder] = self

    def finish(self, timeout_seconds: float) -> UploadReport:
        """Send what is left, wait for it no longer than the timeout, and end the thread."""
        self._finishing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        self._abandoned.set()
        return self._last_report(timeout_seconds)

    def finish_patiently(self, patience_seconds: float) -> UploadReport:
        """Send what is left, and wait until nothing has been sent for so long."""
        self._finishing.set()
        progress, since = (-1, True), time.monotonic()
        while self._thread.is_alive():
            now = self.sent, self._remote is None and self._error is None
            if now != progress:
                progress, since = now, time.monotonic()
            if time.monotonic() - since > max(patience_seconds, OPENING_SECONDS if now[1] else 0.0):
                break
            self._thread.join(POLL_SECONDS)
        self._abandoned.set()
        return self._last_report(patience_seconds)

    def abandon(self) -> None:
        """Send no more, and wait for nothing."""
        self._abandoned.set()
        self._finishing.set()

    def _last_report(self, waited_seconds: float) -> UploadReport:
        report = self.report()
        if not self._complete and report.error is None:
            held = ", since the run's object store does not have it" if self._waits_for_store else ""
            return replace(report, error=f"not everything was sent within {waited_seconds:g} s{held}")
        return report

    def report(self) -> UploadReport:
        """Return the progress. May be called from any thread."""
        error = self._error or self._uploads.error
        return replace(report_of(self._cursor, self._record.uri, self._journal, error), sent=self.sent)

    def _run(self) -> None:
        try:
            self._await_predecessor()
            if self._record.parent:
                self._finishing.wait(FIRST_SECONDS)
            self._upload_until_finished()
        finally:
            if _at_work.get(self._folder) is self:
                del _at_work[self._folder]
            if self._abandoned.is_set() or self._complete:  # and nobody else reads it, or it is opened again
                self._journal.close()

    def _await_predecessor(self) -> None:
        """Wait for a thread that was given up while it sent this journal: both would create the run."""
        predecessor, self._predecessor = self._predecessor, None
        if predecessor is None:
            return
        while predecessor._thread.is_alive() and not self._abandoned.is_set():
            predecessor._thread.join(POLL_SECONDS)
        self._cursor = UploadCursor.load(self._folder / CURSOR_FILE)

    def _upload_until_finished(self) -> None:
        while not self._abandoned.is_set():
            finishing = self._finishing.is_set()
            succeeded = self._attempt()
            if finishing and succeeded and self._waits_for_store:
                hurry(self._folder)
                self._abandoned.wait(POLL_SECONDS)
                continue
            if finishing and succeeded and not self._cursor.deferred:
                self._complete = not self._abandoned.is_set()
                return
            wake = self._abandoned if finishing else self._finishing
            seconds = self._uploads.backoff.wait_seconds if finishing else INTERVAL_SECONDS
            wake.wait(seconds if succeeded else self._backoff.wait_seconds)
            if not finishing and self._finishing.is_set():
                self._uploads.backoff.hurry()

    def _attempt(self) -> bool:
        try:
            self._upload()
        except Exception as error:
            self._note_failure(error)
            return False
        if self._error:
            logger.info("metrics reach MLflow again, nothing is missing")
        self._backoff.succeeded()
        self._note_result(None)
        return True

    def _note_result(self, error: str | None) -> None:
        """Note the result of the last attempt, also in the file for those who only see that."""
        self._error = error
        shown_error = error or self._uploads.error or ""
        if self._cursor.error != shown_error:
            self._cursor.error = shown_error
            with suppress(OSError):
                self._save_cursor()

    def _save_cursor(self) -> None:
        with self._own_files():
            self._cursor.save(self._folder / CURSOR_FILE)

    @contextmanager
    def _own_files(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise FolderTrouble(f"the run's folder {self._folder} cannot be used: {reason}") from error

    def _note_failure(self, error: Exception) -> None:
        self._backoff.failed()
        self._remote = None  # found again next time: the server may have lost the run, or be another one
        if self._connection is not None:
            self._connection.forget()
        previous = self._error
        if isinstance(error, FolderTrouble):
            self._note_result(str(error))
            if previous is None:
                logger.warning("%s; what it holds is sent to MLflow once that is fixed", error)
            return
        self._note_result(cause_text(error, self._record.uri))
        # where nobody has ever answered, the launch has reported it
        if previous is None and (self._cursor.run_id or not is_silence(error)):
            logger.warning(
                "metrics do not reach MLflow for now, they are kept in %s: %s", self._journal.path, self._error
            )

    def _upload(self) -> None:
        if self._is_stored and stored_bytes(self._folder) is None:
            self._abandoned.set()  # the working copy was removed: whoever continues sends what the store has
            return
        self._require_the_same_store()
        if self._remote is None:
            self._remote = self._open()
            if self._abandoned.is_set():  # that may have taken long
                return
        with self._own_files(), self._journal.alone():  # so that what other processes have added is sent, too
            end, last = self._journal.size, self._journal.last_sequence
            fits = self._cursor.fits(self._journal)
            end, last = self._kept(end, last)
        if not fits:
            self._start_over("this is not the journal that was sent before")
        if self._has_lost(self._remote):
            self._start_over("MLflow has lost a part of it")
        for batch in self._batches(end):
            self._send(batch, self._remote)
            self._reached(batch[-1].end, batch[-1].sequence)
            self.sent += len(batch)
            if self._abandoned.is_set():
                return
        self._reached(end, last)  # there may be no entry with that number any more
        self._log([], {}, self._remote)  # params are not to wait for the first point
        self._uploads.send(self._cursor, self._remote)
        self._require_the_same_store()

    def _kept(self, end: int, last: int) -> tuple[int, int]:
        """Return the part of the journal that may be sent: offset and number of its last entry."""
        stored = stored_bytes(self._folder)
        self._waits_for_store = stored is not None and stored < end
        if stored is None or stored >= end:
            return end, last
        number = self._journal.number_before(stored)
        if number is None or stored < self._cursor.offset:
            return self._cursor.offset, self._cursor.sequence
        return stored, number

    def _reached(self, offset: int, sequence: int) -> None:
        if (self._cursor.offset, self._cursor.sequence) != (offset, sequence):
            self._cursor.offset, self._cursor.sequence = offset, sequence
            self._save_cursor()

    def _has_lost(self, remote: MlflowRun) -> bool:
        """Return True if MLflow lacks a part of what it was sent, as after a restore from a backup.

        Looked up once whenever the run was found. Sending all again once is enough: MLflow does not keep what is
        missing after that.
        """
        run, remote.found = remote.found, None
        if run is None or self._was_lost:
            return False
        with self._own_files():
            self._was_lost = self._uploaded.is_lost(run, self._journal, self._cursor.offset, self._cursor.refused)
        return self._was_lost

    def _start_over(self, reason: str) -> None:
        """Send everything to the same run again, which doubles nothing."""
        logger.warning("%s: everything is sent again, since %s", self._journal.path, reason)
        self._replace_cursor(UploadCursor(self._cursor.run_id, self._cursor.experiment_id))

    def _require_the_same_store(self) -> None:
        """A database file that was deleted takes all that it is sent, as long as it is open: nobody else sees it.

        Raises:
            RuntimeError: another file is in its place by now, or none.
        """
        if self._connection is not None and not self._connection.is_current:
            self._connection = None
            self._replace_cursor(UploadCursor())
            raise RuntimeError(
                "the MLflow database was removed or replaced; everything is sent to the one in its place"
            )

    def _open(self) -> MlflowRun:
        database = sqlite_file(self._record.uri)
        creation = None if database is None else mlflow_database.start_creating(database)
        import_mlflow()  # meanwhile: each takes seconds
        if creation is not None:
            mlflow_database.finish_creating(creation, self._abandoned)
        self._connection = shared(self._record.uri)
        parent_id = self._connection.await_parent(self._record, self._abandoned) if self._record.parent else None
        is_new, self.is_new = self.is_new and not (self._folder / CURSOR_FILE).exists(), False
        if is_new:  # whoever sends this record next, should this process end here, has to look for the run
            self._save_cursor()
        remote = MlflowRun.open(self._record, self._connection, parent_id, is_new)
        self._connection.set_views(self._record)
        if remote.run_id != self._cursor.run_id:  # another store, or the run was deleted: it gets everything
            self._replace_cursor(UploadCursor(remote.run_id, remote.experiment_id))
        elif remote.experiment_id != self._cursor.experiment_id:
            self._cursor.experiment_id = remote.experiment_id
            self._save_cursor()
        return remote

    def _replace_cursor(self, cursor: UploadCursor) -> None:
        self._cursor = cursor
        self._save_cursor()

    def _batches(self, end: int) -> Iterator[list[Entry]]:
        """Consecutive entries that go together, since each request costs; a status is the last of its batch.

        Args:
            end: offset that is durable.
        """
        batch: list[Entry] = []
        for entry in self._journal.read(self._cursor.offset, end):
            batch.append(entry)
            if entry.kind == "status" or len(batch) == ENTRIES_PER_BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def _send(self, batch: list[Entry], remote: MlflowRun) -> None:
        points = [MetricPoint.from_json(entry.content) for entry in batch if entry.kind == "point"]
        tags: dict[str, str] = {}
        for entry in batch:
            if entry.kind == "tags":
                tags |= entry.content["tags"]
        lost = tags.pop(metrics.NOT_RECORDED, "")  # one tag has this, and what MLflow refuses
        self._log(points, tags, remote)
        self._note_refused([lost] if lost else [])
        self._note_refused(send_extras(batch, self._record, remote, self._find))
        put_off(batch, self._cursor)
        if batch[-1].kind == "status":
            remote.set_status(batch[-1].content["status"], batch[-1].content["time_ms"])

    def _log(self, points: list[MetricPoint], tags: dict[str, str], remote: MlflowRun) -> None:
        infinite = None if self._cursor.diverged else next((point for point in points if point.is_infinite), None)
        if infinite:
            tags[metrics.DIVERGED] = f"{infinite.key} is {infinite.value} at step {infinite.step}"
        refused = remote.log([point for point in points if not point.is_infinite], tags)
        self._cursor.diverged = self._cursor.diverged or infinite is not None
        self._note_refused(refused)

    def _find(self, run_id: str) -> str | None:
        """MLflow's id of another run of the same experiment."""
        return self._connection.run_id(self._record, run_id) if self._connection is not None else None

    def _note_refused(self, refused: list[str]) -> None:
        if not refused or self._remote is None:
            return
        logger.warning("MLflow will not have %d entries, the first is %s", len(refused), refused[0])
        self._cursor.refused = list(dict.fromkeys([*self._cursor.refused, *refused]))[-MOST_REFUSED:]
        self._remote.log([], {metrics.NOT_RECORDED: "\n".join(self._cursor.refused)[:TAG_LENGTH]})


_at_work: dict[Path, MlflowUploader] = {}
"""The newest uploader of each folder in this process, until its thread ends."""
