"""How training ends: with an outcome, or with one of the errors that all ranks find together."""

from dataclasses import dataclass, field

from paceline.errors import TrainingError


class Diverged(TrainingError):
    """Training cannot continue: the loss is not finite, or fp16's scale collapsed. Raised on all ranks together."""


class CheckpointLost(TrainingError):
    """The state at the end of training could not be saved; the checkpoints before it are still valid."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, as rank 0 tells it."""

    stopped: bool
    """Whether it was asked to stop before its end, or at a rung."""
    step: int
    epoch: int
    samples: int
    """Training samples consumed since the start, resumed runs included."""
    metrics: dict[str, float]
    """The newest value of each metric."""
    samples_per_second: float
    peak_memory_bytes: int
    checkpoint: str
    weights_sha256: str
    stopped_early: str | None = None
    """Which callback finished the run before the end of its plan, and why."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What rank 0's time went into, see `Meter.split`; of this process alone."""
