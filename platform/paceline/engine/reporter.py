"""The interface through which the engine reports metrics and events, and receives requests to stop.

With it, the same engine runs in a test, in one process, or under Ray Train. All methods are called on rank 0 only, in
the training process. None may block for long or raise, unless its docstring says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Reporter(Protocol):
    """Receiver of the engine's metrics and events, and source of requests to stop."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report the values of an optimizer step, by metric name."""

    def progress(self, step: int, samples_per_second: float) -> None:
        """Report progress a few times a second, for a progress bar."""

    def event(self, kind: str, **details: Any) -> None:
        """Report an event: `resumed`, `checkpoint`, `stopped_early`, `warning`; details are plain JSON values.

        Events for the run's record only: `datasets`, `ranks` (the ranks of each machine), `stamp` (the hardware that
        the run's speed was measured on; the newest one counts), and `straggler` and `preemption`, which follow a
        warning.
        """

    def recorded(self, timeout_seconds: float) -> bool:
        """Wait until all metrics so far are safe. Returns False after the time-out. Called before a checkpoint.

        May raise if the checkpoint must not be put in place.
        """

    def stored(self, timeout_seconds: float) -> bool:
        """Wait until the object store of the run has the metrics so far. Returns False after the time-out.

        Called before a checkpoint counts in the store.
        """

    def unrecorded(self) -> list[Any]:
        """Return the metrics that were not safe when `recorded` timed out, as JSON values for the checkpoint."""

    def record_again(self, metrics: list[Any]) -> None:
        """Record the unrecorded metrics of the checkpoint that training resumes from, before any other report.

        A metric that is safe after all, or is measured again, counts once, with its first value.
        """

    def stop_requested(self) -> bool:
        """Return True if the run should save its state and end as soon as possible."""

    def is_leaving(self) -> bool:
        """Return True if a machine of the training is about to be taken away: save the state as often as possible."""

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        """Return True to continue training after a rung, False to end it.

        None stops the run without a decision: a run that resumes asks again. May block for any time, in a thread of its
        own, and may raise. While it blocks, requests to stop are not checked.

        Args:
            step: optimizer step that reached the rung; its checkpoint is safe, unless a warning says otherwise.
            values: `samples`, `epochs`, `seconds` and `step` so far, and the newest value of each metric.
        """


@dataclass
class MemoryReporter:
    """Reporter that keeps all reports in lists: for tests, and for runs without another reporter."""

    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stop_at_step: int | None = None
    """Step from which on a stop is requested, once it has been reported as progress or metrics."""
    asked: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Step and values of each call of `rung`."""
    leave_at_rung: int | None = None
    """Step at which `rung` returns None."""
    stop_at_rung: int | None = None
    """Step from which on `rung` returns False."""
    leave_at_step: int | None = None
    """Step from which on `is_leaving` returns True, once it has been reported."""
    unsafe: list[Any] = field(default_factory=list)
    """Metrics that `unrecorded` returns; `recorded` returns False unless it is empty."""
    _step: int = 0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._step = step
        self.points.append((step, dict(values)))

    def progress(self, step: int, samples_per_second: float) -> None:
        self._step = step

    def event(self, kind: str, **details: Any) -> None:
        self.events.append((kind, details))

    def recorded(self, timeout_seconds: float) -> bool:
        return not self.unsafe

    def stored(self, timeout_seconds: float) -> bool:
        return True

    def unrecorded(self) -> list[Any]:
        return self.unsafe

    def record_again(self, metrics: list[Any]) -> None:
        self.unsafe = metrics

    def stop_requested(self) -> bool:
        return self.stop_at_step is not None and self._step >= self.stop_at_step

    def is_leaving(self) -> bool:
        return self.leave_at_step is not None and self._step >= self.leave_at_step

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        self.asked.append((step, dict(values)))
        if step == self.leave_at_rung:
            return None
        return self.stop_at_rung is None or step < self.stop_at_rung

    def values(self, key: str) -> list[float]:
        """Return all reported values of one metric, in order."""
        return [values[key] for _, values in self.points if key in values]
