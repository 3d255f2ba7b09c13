"""The place where a run's numbers arrive: they go to the recorder, and are kept for whoever watches.

One per run, in the driver's process when training is there too, else in an actor on the driver's node.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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


class Desk:
    """Takes what rank 0 reports. Metrics are durable once `metrics` has returned."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self._folder = folder
        self._recorder = Recorder(folder, record)
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._view = View([], 0, 0.0)
        self._stop = False
        self._shipping = False
        self._unwritten: list[Point] = []

    def begin(self, device: str) -> None:
        """The workers are there, and training is being set up: the time to import MLflow, which takes seconds."""
        self._recorder.set_tags({metrics.DEVICE: device})
        self.event("stage", {"text": "building the model and loading the data"})
        self._start_shipping()

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
        return True

    def progress(self, step: int, samples_per_second: float) -> bool:
        """A sign of life; returns whether the run should stop."""
        self._view.step, self._view.samples_per_second = step, samples_per_second
        return self._stop

    def event(self, kind: str, details: dict[str, Any]) -> None:
        """Something worth telling the watcher."""
        self._events.append((kind, details))

    def request_stop(self) -> None:
        """Ask the run to save its state and end."""
        self._stop = True

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` has been called."""
        return self._stop

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """How training ended, from rank 0 or from the rank that failed; the first word stays."""
        path = self._folder / OUTCOME
        if not path.exists():
            path.write_text(json.dumps(outcome))

    def outcome(self) -> dict[str, Any] | None:
        """How training ended; None while it goes on, or when it died without a word."""
        path = self._folder / OUTCOME
        return json.loads(path.read_text()) if path.exists() else None

    def view(self, seen_events: int) -> View:
        """The state of things for a watcher that has seen so many events."""
        view = self._view
        ended = self.outcome() is not None
        return View(self._events[seen_events:], view.step, view.samples_per_second, dict(view.metrics), ended)

    def history(self) -> list[tuple[str, float, int]]:
        """All recorded points: (key, value, step)."""
        return [(point.key, point.value, point.step) for point in self._recorder.history()]

    def close(self, status: Status, reason: str | None, timeout_seconds: float) -> dict[str, Any]:
        """Ship what is left and end the MLflow run; returns a `ShipReport` as a mapping."""
        self._start_shipping()
        report = self._recorder.close(status, reason, timeout_seconds)
        return asdict(report)

    def _start_shipping(self) -> None:
        if not self._shipping:
            self._shipping = True
            self._recorder.start_shipping()
