"""The one seam through which the engine speaks outwards.

It makes the same engine run in a test, in one process, or under Ray Train. All methods are called on rank 0 only, in
the training process; none may block for long or raise, but where it says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Reporter(Protocol):
    """Where the engine's numbers and events go, and where a request to stop comes from."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Values of an optimizer step, by metric name."""

    def progress(self, step: int, samples_per_second: float) -> None:
        """A sign of life a few times a second, for a progress bar."""

    def event(self, kind: str, **details: Any) -> None:
        """Something worth telling: `resumed`, `checkpoint`, `stopped_early`, `warning`; details are plain JSON values.

        For the run's record alone: `datasets`, `ranks` (which are on which machine), `stamp` (what its speed was
        measured on; the newest one holds), and `straggler` and `preemption`, which come with a warning.
        """

    def recorded(self, timeout_seconds: float) -> bool:
        """Wait until all metrics so far are safe; False when they were not in time. Called before a checkpoint.

        May raise when the checkpoint must not be put in place.
        """

    def stored(self, timeout_seconds: float) -> bool:
        """Wait until the object store of the run has the metrics so far; False when it had not in time. Called before
        a checkpoint counts there."""

    def unrecorded(self) -> list[Any]:
        """What `recorded` has waited for in vain, as JSON values: the checkpoint keeps it."""

    def record_again(self, metrics: list[Any]) -> None:
        """Take up what `unrecorded` gave to the checkpoint that training resumes from, before any other report.

        What is safe after all, or is measured again, counts once: as it was taken first.
        """

    def stop_requested(self) -> bool:
        """Whether the run should save its state and end at the next chance."""

    def is_leaving(self) -> bool:
        """Whether a machine that trains is about to be taken away: the state is then saved as often as can be."""

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        """Whether to train on after a rung. May block as long as it likes, in a thread of its own, and may raise.

        None: stop, but nothing is decided, so that a run that resumes asks again. While it blocks, nothing else asks
        whether to stop.

        Args:
            step: the optimizer step that reached the rung; its checkpoint is safe, unless a warning says otherwise.
            values: `samples`, `epochs`, `seconds` and `step` so far, and the newest value of each metric.
        """


@dataclass
class MemoryReporter:
    """Keeps everything in lists: for tests, and for runs that nobody watches."""

    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stop_at_step: int | None = None
    """Ask to stop once a step this high has been reported as progress or metrics."""
    asked: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """The rungs that were asked about."""
    leave_at_rung: int | None = None
    """Give no answer at the rung at this step."""
    stop_at_rung: int | None = None
    """Answer no from a rung on at a step this high."""
    leave_at_step: int | None = None
    """Say that the machine leaves once a step this high has been reported."""
    unsafe: list[Any] = field(default_factory=list)
    """What `unrecorded` gives; `recorded` says no as long as there is something."""
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
        """All reported values of one metric, in order."""
        return [values[key] for _, values in self.points if key in values]
