"""Jobs of a tune-up: benchmarks, trainings, and looks at the model. They travel between processes.

The driver asks for one job after the other; each is done by all ranks of the one worker group, and answered by rank 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from paceline.cluster.worker_spec import TrialWorkerSpec, WorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import objects_in
from paceline.config.shareable import shareable

Kind = Literal["look", "split", "benchmark", "build", "train", "memory", "predict"]


@dataclass(frozen=True)
class Job:
    """One piece of work."""

    kind: Kind
    configs: tuple[TrialWorkerSpec, ...]
    """The config; of a benchmark the baseline's and the technique's, of a build those of all its comparisons."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of that kind, in plain values."""
    limit_seconds: float = inf
    """After so long it is given up, and the worker processes that may hang in it are ended."""


@dataclass(frozen=True)
class NumberedJob:
    """A job as a worker group takes it from the coordinator."""

    number: int
    job: Job
    timeout_seconds: float


@dataclass(frozen=True)
class Answer:
    """The result of a job."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values; empty when it failed."""
    problem: str = ""
    """Why it failed; empty when it did not."""
    kind: str = ""
    """`error`, `oom` or `diverged` when it failed; `lost` when its workers died."""


def gave_up(job: Job) -> Answer:
    """The answer to a job that has reached its limit."""
    hint = "if it is no more than slow, raise tuneup.budget_seconds"
    return Answer(problem=f"it took more than {job.limit_seconds:.0f} s, and was ended: {hint}", kind="lost")


def part_of(config: ExperimentConfig) -> TrialWorkerSpec:
    """A config as a part of the worker_spec that all jobs have in common."""
    return TrialWorkerSpec(shareable(config).model_dump_json(), tuple(objects_in(config.model_dump())))


def config_of(base: WorkerSpec, part: TrialWorkerSpec) -> ExperimentConfig:
    """The config, validated again where it is used."""
    return base.for_trial(part).config()
