"""Jobs of a bench: trainings, measurements and inspections of the model. They are sent between processes.

The driver sends one job after the other. All ranks of the one worker group run it, and rank 0 answers.
Light to import: the functions that run the jobs are named by import path, and loaded where they run.
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


START_ANEW = "start again with --new"

NO_ROOM = "no-room"
"""Kind of an answer to a job for whose workers the resources are lacking."""
TOO_SLOW = "too-slow"
"""Kind of an answer to a job that has reached its limit."""


@dataclass(frozen=True)
class StudyKind:
    """Kind of study that runs on a bench, such as tune-ups: its names in messages and in the config."""

    noun: str
    """`tune-up`."""
    section: "Kind"
    """Section of the config, whose `budget_seconds` limits it: `tuneup`."""
    code: str
    """Error code used if hardware, code, model or data have changed since an earlier launch."""

    @property
    def command(self) -> str:
        """Command that runs the study."""
        return f"paceline {self.section}"

    @property
    def may_differ(self) -> tuple[str, ...]:
        """Keys and sections of the config that change neither what a study measures nor how fast anything is."""
        others = (each for each in ("sweep", "scale", "tuneup") if each != self.section)
        return ("storage", *others, "tracking.uri", "tracking.offline")


@dataclass(frozen=True)
class Job:
    """One job of a bench."""

    function: str
    """Import path of the function that does it, on every rank: `(configs, options, ranks) -> values`, all plain JSON
    values but the configs, which are validated, and the `DistContext`. The values of rank 0 are the answer."""
    configs: tuple[TrialWorkerSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that function, as plain JSON values."""
    limit_seconds: float = inf
    """Seconds after which the job is given up, and the worker processes that may hang in it are killed."""
    checks_again: bool = False
    """True if a later launch repeats the job, and continues only if its answer is the same; see `ResumableBench`."""
    in_fresh_processes: bool = False
    """True if the job runs in processes in which nothing has been built before."""
    folder: str = ""
    """Folder that the function may write to, passed as its option `root`. A later launch may use a different one."""

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
    """Plain JSON values; empty if the job failed."""
    problem: str = ""
    """Reason for the failure; empty if the job succeeded."""
    kind: str = ""
    """`error`, `oom` or `diverged` if the job failed; `lost` if its workers died, `too-slow` if they reached its limit,
    and `no-room` if there is none for them; `full_disk` if a disk has no room."""
    code: str = ""
    """Code of the `PacelineError` that it failed with."""


def gave_up(job: Job, study: StudyKind) -> Answer:
    """Return the answer to a job that has reached its limit."""
    hint = f"if it is no more than slow, raise {study.section}.budget_seconds"
    return Answer(problem=f"it took more than {job.limit_seconds:.0f} s, and was ended: {hint}", kind=TOO_SLOW)


def part_of(config: ExperimentConfig) -> TrialWorkerSpec:
    """Return a config as the part of the worker spec that differs between jobs."""
    return TrialWorkerSpec(shareable(config).model_dump_json(), tuple(objects_in(config.model_dump())))
