"""Findings of a study: what was measured, what follows from it, and how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from paceline.batch_scaling.critical_batch import Branch, CriticalBatch
from paceline.batch_scaling.lr_rules import LrRules
from paceline.batch_scaling.step_time import StepTimeModel
from paceline.direction import Direction
from paceline.errors import RunFailed


class StudyFailed(RunFailed):
    """The study failed: the config as it is gives no reference for larger batches."""

    def __init__(self, message: str, code: str, **fields: object) -> None:
        super().__init__(message, code=code)
        self.fields = fields


@dataclass(frozen=True)
class TargetMetric:
    """A metric of the evaluation, and the value that it is to reach."""

    name: str
    value: float
    mode: Direction

    @property
    def text(self) -> str:
        """`val/accuracy >= 0.96`."""
        return f"{self.name} {'>=' if self.mode == 'max' else '<='} {self.value:.6g}"


@dataclass(frozen=True)
class ScaleRow:
    """A batch size with a number of workers, and its expected time and cost to the target."""

    global_batch_size: int
    workers: int
    lr: float
    """Peak learning rate; with `adascale`, before the gain of each step."""
    samples: float
    steps: float
    seconds: float
    worker_seconds: float
    """Cost in worker-seconds: seconds times workers."""
    is_extrapolated: bool
    """True if no branch had a batch this large or this small, or if this number of workers was not measured."""
    is_in_reach: bool
    """True if the target is reached within the config's training length, as far as the batch can be trained at all."""
    samples_interval: tuple[float, float] | None = None
    """95 % interval of `samples`; None if no branch could be trained."""
    seconds_interval: tuple[float, float] | None = None
    """The same of `seconds`; that of a step that was not measured includes the error of the step-time model."""


@dataclass(frozen=True)
class LargerBatchCheck:
    """A training to the target with a larger batch where none is predicted to be faster, with the first seed."""

    batch_size: int
    samples: int | None
    """Samples to the target; None if it was not reached."""
    predicted_samples: float
    """Samples that were predicted before it."""


@dataclass(frozen=True)
class Verification:
    """Trainings in one way that have reached the target, one for each seed."""

    batch_sizes: tuple[int, ...]
    """The global batch size; several where it grows over the training."""
    samples: tuple[int, ...]
    """Samples to the first evaluation at the target."""
    smoothed_samples: tuple[float, ...]
    """Samples to the target, estimated from those to several values of the metric on the way to it, see
    `milestones`."""
    sample_seconds: tuple[float, ...]
    """Seconds per sample, one for each turn of the measurement."""

    @property
    def mean_samples(self) -> float:
        """Geometric mean of the smoothed samples over the seeds."""
        return geometric_mean(self.smoothed_samples)

    @property
    def seconds(self) -> float:
        """Seconds to the target: the samples times the seconds per sample."""
        return self.mean_samples * geometric_mean(self.sample_seconds)


@dataclass(frozen=True)
class NoisePoint:
    """The gradient noise scale at a point of training, in samples."""

    samples: int
    value: float
    """Noise scale in samples; so are `low` and `high`, the ends of its 95 % interval."""
    low: float
    high: float | None
    """Upper end of the interval; None if it is unbounded."""


@dataclass(frozen=True)
class ScaleFindings:
    """Results of a study."""

    target: TargetMetric
    own_batch_size: int
    workers: int
    samples_to_target: int
    """Samples to the target with the config as it is: the geometric mean of `own_samples`."""
    own_samples: Mapping[int, int]
    """Samples to the target by seed, for each seed that was trained before the verification."""
    critical: CriticalBatch | None
    """Critical batch size; None if no branch could be trained."""
    branches: tuple[Branch, ...]
    noise: tuple[NoisePoint, ...]
    rules: LrRules
    """Learning-rate rules that held in the branches."""
    step_time: StepTimeModel | None
    step_time_error: float | None
    """Median relative error of the step times on batch sizes that were left out of the fit, with the config's own
    number of workers."""
    table: tuple[ScaleRow, ...]
    fastest: ScaleRow | None
    cheapest: ScaleRow | None
    knee: ScaleRow | None
    """The smallest batch whose time is within a tenth of the fastest's."""
    recommended: Mapping[str, Any] = field(default_factory=dict)
    """Recommended overrides of the config; empty if no larger batch was shown, or predicted, to be faster."""
    predicted_seconds: float | None = None
    """Predicted seconds to the target with the recommendation; with the config as it is if nothing is recommended."""
    measured_seconds: float | None = None
    """Measured seconds to the target with the recommendation, or with the config as it is if no candidate was verified
    to be faster; None if nothing was verified."""
    own_seconds: float | None = None
    """Measured seconds to the target with the config as it is; None if nothing was verified."""
    verifications: tuple[Verification, ...] = ()
    """Verification of the config as it is, then those of the candidates."""
    check: LargerBatchCheck | None = None
    """None if a larger batch was predicted to be faster, or if nothing was verified."""
    speedup: float | None = None
    """Measured speedup of the recommendation over the config as it is; None if nothing was recommended or verified."""
    speedup_interval: tuple[float, float] | None = None
    """The interval that decided. Over all candidates and looks, the chance that its lower end is above the true speedup
    is at most 5 %, if the samples scatter by up to 0.25, and the ratio is the same on the last 40 % of the way."""
    undecided: str = ""
    """Reason why nothing is known about larger batches; empty if the study reached a decision."""
    other_workers: tuple[int, ...] = ()
    """Numbers of workers, besides the config's own, whose steps were measured."""
    other_workers_error: float | None = None
    """Median relative error of their step times, as predicted from the config's own number of workers alone."""
    samples_spent: int = 0
    """Training samples that the study has used, verification included."""
    notes: tuple[str, ...] = ()
