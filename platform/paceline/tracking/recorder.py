"""The one writer of a run's record: durable in the run's folder first, then on its way to MLflow."""

import logging
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from paceline.durable import write_durably
from paceline.tracking import metrics
from paceline.tracking.journal import Journal
from paceline.tracking.note import summary
from paceline.tracking.picture import loss_curve
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord, clean_tags
from paceline.tracking.redact import redact
from paceline.tracking.shipping import ARTIFACT_FOLDER, Shipper, ShipReport

logger = logging.getLogger(__name__)

JOURNAL_FILE = "journal.jsonl"
LOSS_CURVE = "loss_curve.png"
FinalStatus = Literal["FINISHED", "FAILED", "KILLED"]
TRIAL_STATUS: Mapping[str, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "oom": "FAILED",
    "diverged": "FAILED",
}
"""MLflow's status of a sweep's trial by its state; any other state, such as `pruned` or `stopped`, is `KILLED`."""


class Recorder:
    """Takes what a run has to tell, and sees to it that MLflow has it exactly once.

    Lives in one process at a time, on the driver's node: in the training process itself, or in an actor. Opened again
    on the same folder after a crash or for a resumed run, it goes on where the journal ends. Its methods may be called
    from several threads. None of them waits for MLflow, except `close`.
    """

    def __init__(self, folder: Path, record: RunRecord) -> None:
        """Open or create the run's record in `folder`, which is best one of its own.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._folder = folder
        self._record = record
        self._journal = Journal(folder / JOURNAL_FILE)
        self._lock = threading.RLock()
        self._marks: dict[str, int] = {}
        self._closed = False
        status = self._replay()
        record.save(folder)
        self._resumed_after_end = status not in (None, "RUNNING")
        if self._resumed_after_end:
            self._append_status("RUNNING")
        for path, text in record.artifacts.items():
            self.add_artifact(path, text.encode())
        self._shipper = Shipper(folder, record, self._journal)

    def append(self, points: Sequence[Point]) -> int:
        """Add points; they are on disk when this returns. Returns how many were new.

        A point whose step is not above the last one of its key is dropped: after a crash a run computes some steps
        again, and the first value stays the one.

        Raises:
            OSError: the disk is full or gone; none of the points was added.
        """
        with self._lock:
            marks = dict(self._marks)
            fresh = [point for point in points if _advance(marks, point)]
            self._journal.append([("point", point.to_json()) for point in fresh])
            self._marks = marks
        return len(fresh)

    def add_artifact(self, path: str, data: bytes) -> None:
        """Add a file, or replace it; unchanged content is not sent again. On disk when this returns.

        Args:
            path: relative path with forward slashes, under which MLflow shows it.
        """
        place = PurePosixPath(path)
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise ValueError(f"an artifact's path must be relative and without '..', not {path!r}")
        file = self._folder / ARTIFACT_FOLDER / place
        with self._lock:
            if path in self._artifacts and file.is_file() and file.read_bytes() == data:
                return
            write_durably(file, data)
            self._journal.append([("artifact", {"path": str(place)})])
            self._artifacts.add(path)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, over older values; secrets in them are hidden. On disk when this returns."""
        with self._lock:
            self._journal.append([("tags", {"tags": clean_tags(tags)})])

    def history(self) -> list[Point]:
        """All points so far, read from the journal: in the order they came, one for each key and step."""
        entries = self._journal.read(stop=self._journal.size)
        return [Point.from_json(entry.content) for entry in entries if entry.kind == "point"]

    def start_shipping(self) -> None:
        """Start the thread that imports MLflow and sends the journal. Best called once training is under way."""
        self._shipper.start()

    def report(self) -> ShipReport:
        """How far the record has come into MLflow; at once, whatever MLflow does."""
        return self._shipper.report()

    def close(
        self, status: FinalStatus, reason: str | None = None, timeout_seconds: float = 60.0, note: str | None = None
    ) -> ShipReport:
        """End the run: draw its picture, sum it up, and send what is left, but wait no longer than the timeout.

        What is unsent then stays in the journal: `sync` sends it, and so does a resumed run. A second call only waits.

        Args:
            note: Markdown for the run's page, in place of the summary of its points.
        """
        if not self._closed:
            self._closed = True
            self._conclude(status, reason, note)
        self.start_shipping()
        report = self._shipper.finish(timeout_seconds)
        self._journal.close()
        return report

    def _replay(self) -> str | None:
        """Take up what the journal holds; returns the run's last status in it."""
        self._artifacts: set[str] = set()
        status = None
        for entry in self._journal.scan():
            if entry.kind == "point":
                _advance(self._marks, Point.from_json(entry.content))
            elif entry.kind == "artifact":
                self._artifacts.add(entry.content["path"])
            elif entry.kind == "status":
                status = entry.content["status"]
        return status

    def _append_status(self, status: str) -> None:
        self._journal.append([("status", {"status": status, "time_ms": time.time_ns() // 1_000_000})])

    def _conclude(self, status: FinalStatus, reason: str | None, note: str | None) -> None:
        points = self.history()
        if self._record.picture and any(point.key in (metrics.TRAIN_LOSS, metrics.VAL_LOSS) for point in points):
            self._draw(points)
        if note is None:
            note = summary(self._record.name, points, status, reason, self._record.tags)
        tags = {metrics.NOTE: note}
        if reason or self._resumed_after_end:  # an earlier end's reason must not outlive it
            tags[metrics.STATUS_REASON] = reason or ""
        with self._lock:
            self.set_tags(tags)
            self._append_status(status)

    def _draw(self, points: list[Point]) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / LOSS_CURVE
                loss_curve(points, file, self._record.name)
                self.add_artifact(LOSS_CURVE, file.read_bytes())
        except Exception as error:  # a picture is no reason to fail a run
            logger.warning("the loss curve could not be drawn: %s", redact(str(error)))


def sync(folder: Path, uri: str | None = None, timeout_seconds: float = 60.0) -> ShipReport:
    """Send to MLflow what a run's recorder could not. For a run that is not running any more.

    Args:
        folder: the recorder's folder.
        uri: MLflow's address; by default the one that the run was started with, less its credentials.
    """
    journal = Journal(folder / JOURNAL_FILE)
    for _ in journal.scan():
        pass
    shipper = Shipper(folder, RunRecord.load(folder, uri), journal)
    shipper.start()
    return shipper.finish(timeout_seconds)


def _advance(marks: dict[str, int], point: Point) -> bool:
    """Raise the key's mark to the point's step; False when it is there already."""
    mark = marks.get(point.key)
    if mark is not None and point.step <= mark:
        return False
    marks[point.key] = point.step
    return True
