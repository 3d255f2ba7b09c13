"""The place where a run's numbers arrive: they go to the recorder, and are kept for whoever watches.

One per run, in the driver's process when training is there too, else in an actor on the driver's node.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paceline.durable import write_durably
from paceline.tracking import metrics
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

Status = Literal["FINISHED", "FAILED", "KILLED"]

OUTCOME = "outcome.json"


@dataclass
class View:
    """What a watcher has not seen yet, and the newest progress."""

    events: list[tuple[str, dict[str, Any]]]
    step: int
    samples_per_second: float
    metrics: dict[str, float] = field(default_factory=dict)
    ended: bool = False
    """Whether training has told how it ended."""


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """How training ended, as a desk wrote it down; None when it did not, or when the file is damaged."""
    try:
        outcome = json.loads((folder / OUTCOME).read_bytes())
    except (OSError, ValueError):
        return None
    return outcome if isinstance(outcome, dict) and "status" in outcome else None


def forget_outcome(folder: Path) -> None:
    """Remove what the desk of an earlier launch of the same run wrote down.

    Raises:
        OSError: the folder cannot be written to.
    """
    (folder / OUTCOME).unlink(missing_ok=True)


class Desk:
    """Takes what rank 0 reports. Metrics are durable once `metrics` has returned.

    One desk belongs to one launch, so it is also what tells the launch's worker groups from those of others: see
    `enter` and `may_commit`.
    """

    def __init__(
        self, folder: Path, record: RunRecord, on_event: Callable[[str, dict[str, Any]], None] | None = None
    ) -> None:
        """Open the run's record in `folder`.

        Args:
            on_event: is given each event, its kind and its details, in place of the watcher; none is kept then.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._folder = folder
        self._recorder = Recorder(folder, record)
        self._outcome = read_outcome(folder)  # this desk may be one that died and was started again
        self._workers: list[bytes] = []
        self._dismissed = False
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._on_event = on_event or (lambda kind, details: self._events.append((kind, details)))
        self._view = View([], 0, 0.0)
        self._stop = False
        self._unwritten: list[Point] = []

    def begin(self, device: str) -> None:
        """The workers are there, and training is being set up."""
        self.event("stage", {"text": "building the model and loading the data"})
        self.tag({metrics.DEVICE: device})
        self.ship()

    def ship(self) -> None:
        """Begin to send what is recorded; imports MLflow, in a thread, which takes seconds."""
        self._recorder.start_shipping()

    def metrics(self, step: int, values: Mapping[str, float]) -> bool:
        """Record the values of a step; returns whether they are safe. Never raises: training goes on regardless."""
        self._view.step = max(step, self._view.step)
        self._view.metrics.update(values)
        self._view.samples_per_second = values.get("samples_per_second", self._view.samples_per_second)
        now = int(time.time() * 1000)
        self._unwritten += [Point(key, value, step, now) for key, value in values.items()]
        try:
            self._recorder.append(self._unwritten)
        except OSError as error:
            self.event("warning", {"message": f"the metrics of step {step} could not be recorded: {error}"})
            return False  # kept, and tried again with the next ones
        self._unwritten = []
        self.ship()  # a desk that was started again has not been told to
        return True

    def progress(self, step: int, samples_per_second: float) -> bool:
        """A sign of life; returns whether the run should stop."""
        self._view.step, self._view.samples_per_second = step, samples_per_second
        return self._stop

    def event(self, kind: str, details: dict[str, Any]) -> None:
        """Something worth telling the watcher."""
        self._on_event(kind, details)
        if kind == "batch":
            self.tag({key: str(details[name]) for key, name in metrics.FOUND_SIZES.items()})

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; one that cannot be recorded is told to the watcher."""
        try:
            self._recorder.set_tags(tags)
        except OSError as error:
            self.event("warning", {"message": f"{', '.join(tags)} could not be recorded: {error}"})

    def request_stop(self) -> None:
        """Ask the run to save its state and end."""
        self._stop = True

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` has been called."""
        return self._stop

    def enter(self, worker: bytes) -> bool:
        """A worker process reports for work, with its actor's pickled handle; whether there is any left to do."""
        self._workers.append(worker)
        return self._outcome is None and not self._dismissed

    def may_commit(self) -> bool:
        """Whether the launch still goes on, so that its rank 0 may put a checkpoint in place."""
        return not self._dismissed

    def dismiss(self) -> list[bytes]:
        """The launch is over, whatever its workers do; returns their handles."""
        self._dismissed = self._stop = True
        return self._workers

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """How training ended, from rank 0 or from the rank that failed; the first word stays."""
        if self._outcome is not None:
            return
        self._outcome = dict(outcome)
        try:
            write_durably(self._folder / OUTCOME, json.dumps(outcome).encode())
        except OSError as error:  # the file only serves a desk that has to start again
            self.event("warning", {"message": f"how training ended could not be written down: {error}"})

    def outcome(self) -> dict[str, Any] | None:
        """How training ended; None while it goes on, or when it died without a word."""
        return self._outcome

    def view(self, seen_events: int) -> View:
        """The state of things for a watcher that has seen so many events."""
        view = self._view
        ended = self._outcome is not None
        return View(self._events[seen_events:], view.step, view.samples_per_second, dict(view.metrics), ended)

    def history(self) -> list[tuple[str, float, int]]:
        """All recorded points: (key, value, step)."""
        return [(point.key, point.value, point.step) for point in self._recorder.history()]

    def close(self, status: Status, reason: str | None, timeout_seconds: float) -> dict[str, Any]:
        """Ship what is left and end the MLflow run; returns a `ShipReport` as a mapping."""
        self.ship()
        try:
            report = self._recorder.close(status, reason, timeout_seconds)
        except OSError as error:  # no room for the last words: what is in the journal is sent all the same
            report = self._recorder.close(status, reason, timeout_seconds)
            report = replace(report, error=f"the end of the run could not be recorded: {error}")
        return asdict(report)
