"""End of training: an outcome, or one of the errors that are raised on all ranks together."""

from dataclasses import dataclass, field

from paceline.errors import TrainingError


class Diverged(TrainingError):
    """Training cannot continue: the loss is not finite, or fp16's scale collapsed. Raised on all ranks together."""


class CheckpointLost(TrainingError):
    """The state at the end of training could not be saved; the checkpoints before it are still valid."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run, as reported by rank 0."""

    stopped: bool
    """True if the run was asked to stop before its end, or at a rung."""
    step: int
    epoch: int
    samples: int
    """Training samples consumed since the start, resumed runs included."""
    metrics: dict[str, float]
    """Newest value of each metric."""
    samples_per_second: float
    peak_memory_bytes: int
    checkpoint: str
    weights_sha256: str
    stopped_early: str | None = None
    """Text on the callback that finished the run before the end of its plan, with the reason; None if none did."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of rank 0 by activity, see `Meter.split`; of this process only, without earlier attempts."""
