"""Jobs of a bench: trainings, measurements and looks at the model. They travel between processes.

The driver asks for one job after the other; each is done by all ranks of the one worker group, and answered by rank 0.
Light to import: the functions that do the jobs are named by their import paths, and loaded where they run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from paceline.cluster.worker_spec import TrialWorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import objects_in
from paceline.config.shareable import shareable

if TYPE_CHECKING:
    from paceline.cluster.user_code import Kind

TRAIN = "paceline.bench.training:train"
"""Trains one config to its end."""
THROUGHPUT = "paceline.bench.throughput:throughput"
"""Measures the seconds per sample of some configs."""


@dataclass(frozen=True)
class StudyKind:
    """A kind of study that is done on a bench, such as tune-ups: its names in messages and in the config."""

    noun: str
    """`tune-up`."""
    section: "Kind"
    """Section of the config, whose `budget_seconds` limits it: `tuneup`."""
    code: str
    """Of the error that hardware, code, model or data have changed since an earlier launch."""

    @property
    def command(self) -> str:
        """The command that does it."""
        return f"paceline {self.section}"

    @property
    def may_differ(self) -> tuple[str, ...]:
        """Keys and sections of the config that change neither what a study measures nor how fast anything is."""
        others = (each for each in ("sweep", "scale", "tuneup") if each != self.section)
        return ("storage", *others, "tracking.uri", "tracking.offline")


@dataclass(frozen=True)
class Job:
    """One piece of work."""

    function: str
    """Import path of the function that does it, on every rank: `(configs, options, ranks) -> values`, all plain JSON
    values but the configs, which are validated, and the `DistContext`. The values of rank 0 are the answer."""
    configs: tuple[TrialWorkerSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of that function, in plain values."""
    limit_seconds: float = inf
    """After so long it is given up, and the worker processes that may hang in it are ended."""
    checks_again: bool = False
    """Whether a later launch does it again, and continues only if its answer is the same; see `ResumableBench`."""
    in_fresh_processes: bool = False
    """Whether it is done where nothing has been built before."""
    folder: str = ""
    """Folder that the function may write to, as its option `root`. It may be another one in a later launch."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.partition(":")[2]


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


def gave_up(job: Job, study: StudyKind) -> Answer:
    """The answer to a job that has reached its limit."""
    hint = f"if it is no more than slow, raise {study.section}.budget_seconds"
    return Answer(problem=f"it took more than {job.limit_seconds:.0f} s, and was ended: {hint}", kind="lost")


def part_of(config: ExperimentConfig) -> TrialWorkerSpec:
    """A config as a part of the worker_spec that all jobs have in common."""
    return TrialWorkerSpec(shareable(config).model_dump_json(), tuple(objects_in(config.model_dump())))
