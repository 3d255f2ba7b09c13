"""The one writer of a run's record: durable in the run's folder first, then uploaded to MLflow."""

import json
import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from paceline.durable import write_durably
from paceline.redaction import learn, redact, redact_bytes
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.datasets_and_models import DATASETS, KINDS, MODEL, CheckpointModel, datasets_entry
from paceline.tracking.journal import JOURNAL_FILE, Entry, Journal
from paceline.tracking.metric_points import MetricPoint, fresh_points, now_ms, raise_mark
from paceline.tracking.mlflow_probe import SILENT_SECONDS, silence_of
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_note import loss_curve, summary
from paceline.tracking.run_record import ARTIFACT_FOLDER, RECORD_FILE, RunRecord, clean_tags
from paceline.tracking.thinned_curves import ThinnedCurve, curves_of
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.uploader_process import UploaderProcess, can_upload_in_own_process
from paceline.tracking.uploads import RecordUpload, Uploads

logger = logging.getLogger(__name__)

LOSS_CURVE = "loss_curve.png"
STOPPED_WAITING = "the end was not waited for"
LOOK_SECONDS = 0.1
"""Interval at which the end of a run looks whether it is to wait no longer."""
FinalStatus = Literal["FINISHED", "FAILED", "KILLED"]
TRIAL_STATUS: Mapping[str, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "oom": "FAILED",
    "diverged": "FAILED",
}
"""MLflow's status of a sweep's trial by its state; any other state, such as `pruned` or `stopped`, is `KILLED`."""


class RunRecorder:
    """Records points, tags, artifacts and the status of a run, each of which MLflow gets exactly once.

    Lives in one process at a time, on the driver's node: in the training process itself, or in an actor. Opened again
    on the same folder after a crash or for a resumed run, it resumes where the journal ends. Its methods may be called
    from several threads. None of them waits for MLflow, except `close`.
    """

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        apart: bool = False,
        is_new: bool = False,
        uploads: Uploads | None = None,
    ) -> None:
        """Open or create the run's record in `folder`, which is best one of its own.

        Args:
            apart: send it to MLflow from a process of its own, where this one has better things to do with its cores.
            is_new: True if the run was never begun before. Unless the folder says otherwise, it is then created in
                MLflow without being looked for, which would read all runs of the experiment: too much for each trial
                of a large sweep.
            uploads: sends it to MLflow, beside other records.

        Raises:
            OSError: the folder cannot be written to.
        """
        learn(record.secrets)
        self._folder = folder
        self._record = record
        self._journal = Journal(folder / JOURNAL_FILE, self._take_up)
        self._lock = threading.RLock()
        self._marks: dict[str, int] = {}
        self._closed = self._hurries = False
        status = self._replay()
        is_new = is_new and not (self._journal.last_sequence or (folder / RECORD_FILE).exists())
        changed = _changed_params(folder, record)
        record.save(folder)
        if status not in (None, "RUNNING"):
            self._append_status("RUNNING")
        if changed:
            self.set_tags({metrics.CHANGED_PARAMS: "\n".join(changed)})
        for path, text in record.artifacts.items():
            self.add_artifact(path, text.encode())
        self.is_new = is_new
        """True if the run was never begun before, for certain."""
        self._uploader: MlflowUploader | RecordUpload
        if uploads is not None:
            self._uploader = RecordUpload(uploads, folder, record, self._journal, is_new)
        elif apart and can_upload_in_own_process(folder):
            self._uploader = RecordUpload(UploaderProcess(), folder, record, self._journal, is_new, is_alone=True)
        else:
            self._uploader = MlflowUploader(folder, record, self._journal, is_new)

    def append(self, points: Sequence[MetricPoint]) -> int:
        """Add points; they are on disk when this returns. Returns how many were new.

        A point whose step is not above the last one of its key is dropped: after a crash a run computes some steps
        again, and the first value stays the one.

        Raises:
            OSError: the disk is full or gone; none of the points was added.
        """
        with self._lock, self._journal.alone():
            marks = dict(self._marks)
            fresh = fresh_points(marks, points)
            self._journal.append([("point", point.to_json()) for point in fresh])
            self._marks = marks
        return len(fresh)

    def append_newest(self, values: Mapping[str, float], step: int) -> None:
        """Add the newest value of metrics that are summed up over all launches of the run, such as its cost, unless it
        is the last one that was recorded.

        Args:
            step: at which they are recorded; the next one that is free, where an earlier launch came as far.

        Raises:
            OSError: the disk is full or gone; none of the values was added.
        """
        with self._lock, self._journal.alone():  # reads what others have added
            last = {point.key: point.value for point in self.history() if point.key in values}
            changed = {key: value for key, value in values.items() if last.get(key) != value}
            first = max([step, *(self._marks[key] + 1 for key in changed if key in self._marks)])
            self.append([MetricPoint(key, value, first, now_ms()) for key, value in changed.items()])

    def add_artifact(self, path: str, data: bytes) -> None:
        """Add a file, or replace it; unchanged content is not sent again. On disk when this returns.

        Secrets in a text are hidden.

        Args:
            path: relative path with forward slashes, under which MLflow shows it.
        """
        place = PurePosixPath(path)
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise ValueError(f"an artifact's path must be relative and without '..', not {path!r}")
        file = self._folder / ARTIFACT_FOLDER / place
        data = redact_bytes(data)
        with self._lock:
            if path in self._artifacts and file.is_file() and file.read_bytes() == data:
                return
            self._artifacts.discard(path)  # until it is in the journal: else a repeat would count as sent
            write_durably(file, data)
            self._journal.append([("artifact", {"path": str(place)})])
            self._artifacts.add(path)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, over older values; secrets in them are hidden. On disk when this returns."""
        with self._lock:
            self._journal.append([("tags", {"tags": clean_tags(tags)})])

    def add_datasets(self, sets: Mapping[str, Any]) -> None:
        """Add the data that the run was trained and validated on, see `datasets_entry`; a repeat is ignored.

        On disk when this returns.
        """
        self._add_once(DATASETS, datasets_entry(self._record, sets))

    def add_model(self, model: CheckpointModel) -> None:
        """Add a checkpoint that is kept, to be registered; a repeat is ignored. On disk when this returns."""
        self._add_once(MODEL, model.entry())

    def _add_once(self, kind: str, content: Mapping[str, Any]) -> None:
        with self._lock, self._journal.alone():
            if _identity(kind, content) not in self._told:
                self._journal.append([(kind, content)])
                self._told.add(_identity(kind, content))

    @property
    def was_removed(self) -> bool:
        """True if the journal was removed since it was opened, and written again."""
        return self._journal.was_removed

    def restore(self) -> None:
        """Write again what the folder needs beside the journal, so that what comes later can be sent.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._record.save(self._folder)

    @property
    def size(self) -> int:
        """Bytes of the journal that are on disk."""
        return self._journal.size

    def history(self) -> Iterator[MetricPoint]:
        """The points so far, each read from the journal as it is asked for: in the order they came, one for each key
        and step."""
        entries = self._journal.read(stop=self._journal.size)
        return (MetricPoint.from_json(entry.content) for entry in entries if entry.kind == "point")

    def start_uploading(self) -> None:
        """Start what imports MLflow and sends the journal. Best called once training is under way."""
        self._uploader.start()

    def report(self) -> UploadReport:
        """Return how much MLflow has of the record; at once, whatever MLflow does."""
        return self._uploader.report()

    def close(
        self,
        status: FinalStatus,
        reason: str | None = None,
        timeout_seconds: float = 60.0,
        note: str | None = None,
        ledger: Ledger | None = None,
        warnings: Sequence[str] = (),
    ) -> UploadReport:
        """End the run: draw its picture, sum it up, and send what is left, but wait no longer than the timeout.

        What is unsent then stays in the journal: `sync` sends it, and so does a resumed run. A second call only waits.
        Where MLflow has never answered, and still does not, that is found out within a second.

        Args:
            note: Markdown for the run's page, in place of the summary of its points.
            ledger: what the run has cost, for that summary.
            warnings: warnings of the run, for that summary.
        """
        self.conclude(status, reason, note, ledger, warnings)
        self.start_uploading()
        silence = self._silence()
        if silence is not None:
            self._uploader.abandon()
        report = self._finish(0.0 if silence is not None else timeout_seconds)
        self._journal.close()
        return report if silence is None else replace(report, error=silence)

    def hand_over(self, status: FinalStatus, reason: str | None = None) -> None:
        """End the run as `close` does, but send nothing: what sends it needs the folder alone, see `Uploads.finish`.

        Raises:
            OSError: the disk is full or gone; what is in the journal can be sent all the same.
        """
        try:
            self.conclude(status, reason)
        finally:
            if isinstance(self._uploader, MlflowUploader):
                self._uploader.abandon()
            self._journal.close()

    def stop_waiting(self) -> None:
        """Let `close` wait for MLflow no longer, now or later. May be called by a signal's handler."""
        self._hurries = True  # and nothing else: the thread that a handler interrupts may hold any lock

    def _finish(self, timeout_seconds: float) -> UploadReport:
        reports: list[UploadReport] = []
        waiting = threading.Thread(target=lambda: reports.append(self._uploader.finish(timeout_seconds)), daemon=True)
        waiting.start()
        while waiting.is_alive() and not self._hurries:
            waiting.join(LOOK_SECONDS)
        if reports:
            return reports[0]
        self._uploader.abandon()
        return replace(self._uploader.report(), error=STOPPED_WAITING)

    def _silence(self) -> str | None:
        """Return why it is in vain to wait for MLflow; None where it is not."""
        report = self._uploader.report()
        if report.run_id is not None:  # it has answered once
            return None
        silence = silence_of(self._record.uri, SILENT_SECONDS)
        return None if silence is None else report.error or silence

    def conclude(
        self,
        status: FinalStatus,
        reason: str | None = None,
        note: str | None = None,
        ledger: Ledger | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """End the run as `close` does, but send nothing. A second call does nothing.

        Raises:
            OSError: the disk is full or gone.
        """
        if not self._closed:
            self._closed = True
            self._conclude(status, reason, note, ledger, warnings)

    def abandon(self) -> None:
        """Send no more, and wait for nothing: what is unsent stays in the journal."""
        self._uploader.abandon()
        self._journal.close()

    def _replay(self) -> str | None:
        """Take up what the journal holds; returns the run's last status in it."""
        self._artifacts: set[str] = set()
        self._told: set[str] = set()
        self._has_reason = False
        status = None
        for entry in self._journal.scan():
            self._take_up(entry)
            if entry.kind == "status":
                status = entry.content["status"]
        return status

    def _take_up(self, entry: Entry) -> None:
        """Keep in mind what the journal has: an earlier process has written it, or one that is about to end."""
        if entry.kind == "point":
            raise_mark(self._marks, MetricPoint.from_json(entry.content))
        elif entry.kind == "artifact":
            self._artifacts.add(entry.content["path"])
        elif entry.kind == "tags":
            self._has_reason = bool(entry.content["tags"].get(metrics.STATUS_REASON, self._has_reason))
        elif entry.kind in KINDS:
            self._told.add(_identity(entry.kind, entry.content))

    def _append_status(self, status: str) -> None:
        self._journal.append([("status", {"status": status, "time_ms": now_ms()})])

    def _conclude(
        self,
        status: FinalStatus,
        reason: str | None,
        note: str | None,
        ledger: Ledger | None,
        warnings: Sequence[str],
    ) -> None:
        curves = curves_of(self.history())
        if note is None:
            note = summary(self._record.name, curves, status, reason, self._record.tags, ledger, warnings)
        tags = {metrics.NOTE: note}
        if reason or self._has_reason:  # an earlier end's reason must not outlive it
            tags[metrics.STATUS_REASON] = reason or ""
        with self._lock:
            self.set_tags(tags)
            self._append_status(status)
            if self.was_removed:
                self.restore()
        # last, since it takes long: whatever ends this process meanwhile, how the run ended is written down
        if self._record.picture and not curves.keys().isdisjoint((metrics.TRAIN_LOSS, metrics.VAL_LOSS)):
            self._draw(curves)

    def _draw(self, curves: Mapping[str, ThinnedCurve]) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / LOSS_CURVE
                loss_curve(curves, file, self._record.name)
                self.add_artifact(LOSS_CURVE, file.read_bytes())
        except Exception as error:  # a run does not fail for a picture
            logger.warning("the loss curve could not be drawn: %s", redact(str(error)))


def append_late(folder: Path, points: Sequence[MetricPoint]) -> int:
    """Add points to a record that nobody has open, and that stays as it is for the rest: ended, if it has ended.

    Args:
        folder: the recorder's folder.

    Returns:
        How many were new.

    Raises:
        OSError: the folder cannot be written to; none of the points was added.
    """
    marks: dict[str, int] = {}

    def take(entry: Entry) -> None:
        if entry.kind == "point":
            raise_mark(marks, MetricPoint.from_json(entry.content))

    journal = Journal(folder / JOURNAL_FILE, take)
    try:
        with journal.alone():  # reads all that there is
            fresh = fresh_points(marks, points)
            journal.append([("point", point.to_json()) for point in fresh])
    finally:
        journal.close()
    return len(fresh)


def has_ended(folder: Path) -> bool:
    """Return True if the record in a recorder's folder has the end of the run."""
    status = None
    for entry in Journal(folder / JOURNAL_FILE).read():
        if entry.kind == "status":
            status = entry.content["status"]
    return status in get_args(FinalStatus)


def _changed_params(folder: Path, record: RunRecord) -> list[str]:
    """Return the params that differ from those of the launch before: the record holds the newest ones alone."""
    try:
        before = json.loads((folder / RECORD_FILE).read_bytes())["params"]
        known = {str(key): str(value) for key, value in before.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    after = record.params
    return [f"{key}: {known[key]} -> {after[key]}" for key in after if known.get(key, after[key]) != after[key]]


def _identity(kind: str, content: Mapping[str, Any]) -> str:
    return json.dumps([kind, content], sort_keys=True)
