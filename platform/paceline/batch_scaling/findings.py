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
    """There is nothing to compare larger batches with."""

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
    """A batch size with a number of workers, and what it is expected to take to the target."""

    global_batch_size: int
    workers: int
    lr: float
    """Peak learning rate."""
    samples: float
    steps: float
    seconds: float
    worker_seconds: float
    """What is paid for: seconds times workers."""
    is_extrapolated: bool
    """True if no branch had so large or so small a batch, or so many workers were not measured."""
    is_in_reach: bool
    """True if the target comes before the config's length of training ends."""


@dataclass(frozen=True)
class Verification:
    """Trainings to the target in one way, one for each seed."""

    batch_sizes: tuple[int, ...]
    """The global batch size; several where it grows over the training."""
    samples: tuple[int | None, ...]
    """Samples to the target; None where it was not reached."""
    sample_seconds: tuple[float, ...]
    """Seconds of a sample, one for each of the turns in which they were measured."""

    @property
    def mean_samples(self) -> float:
        """Geometric mean over the seeds."""
        return geometric_mean([each for each in self.samples if each is not None])

    @property
    def seconds(self) -> float:
        """Seconds to the target: the samples times the time of one."""
        return self.mean_samples * geometric_mean(self.sample_seconds)


@dataclass(frozen=True)
class NoisePoint:
    """The gradient noise scale at a point of training, in samples."""

    samples: int
    value: float
    """In samples, as both ends of its 95 % interval."""
    low: float
    high: float | None
    """None where there is no upper limit."""


@dataclass(frozen=True)
class ScaleFindings:
    """All that a study has found out."""

    target: TargetMetric
    own_batch_size: int
    workers: int
    samples_to_target: int
    """Of the config as it is: the geometric mean of `own_samples`."""
    own_samples: Mapping[int, int]
    """The same for each seed that was trained with before the verification."""
    critical: CriticalBatch | None
    """None where no branch could be trained."""
    branches: tuple[Branch, ...]
    noise: tuple[NoisePoint, ...]
    rules: LrRules
    """The learning-rate rules that held in them."""
    step_time: StepTimeModel | None
    step_time_error: float | None
    """Median relative error of the step times on batch sizes that were left out of the fit."""
    table: tuple[ScaleRow, ...]
    fastest: ScaleRow | None
    cheapest: ScaleRow | None
    knee: ScaleRow | None
    """The smallest batch whose time is within a tenth of the fastest's."""
    recommended: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the config; empty where no larger batch was surely faster, or predicted to be."""
    predicted_seconds: float | None = None
    """To the target with the recommendation; of the config as it is where nothing is recommended."""
    measured_seconds: float | None = None
    """To the target with the recommendation, or with the config as it is where none was verified to be faster; None
    where nothing was verified."""
    own_seconds: float | None = None
    """The same for the config as it is."""
    verifications: tuple[Verification, ...] = ()
    """That of the config as it is, then those of the candidates."""
    speedup: float | None = None
    """Of the recommendation over the config as it is, as measured; None where nothing was recommended, or verified."""
    speedup_interval: tuple[float, float] | None = None
    """Its 95 % interval over the seeds."""
    undecided: str = ""
    """Reason why nothing is known about larger batches; empty where a recommendation, or none, was decided."""
    samples_spent: int = 0
    """Training samples that the study has used, verification included."""
    notes: tuple[str, ...] = ()
