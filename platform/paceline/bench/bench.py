"""Benches that run one job after the other: a warm worker group under Ray Train, or this process."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.bench.jobs import NO_ROOM, Answer, Job, StudyKind, gave_up
from paceline.bench.limits import LimitReached, raising_after
from paceline.cluster.listener import Stages
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.worker_group import TrainerThread
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault, RunFailed, first_line

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

POLL_SECONDS = 0.05
LEAVE_SECONDS = 4.0
DISMISS_SECONDS = 2.0
RENEW_SECONDS = 30.0
"""Seconds that the coordinator may take to return the worker processes that are to be replaced by fresh ones."""
START_TIMEOUT_SECONDS = 1800


class Bench(Protocol):
    """Runs one job after the other."""

    def do(self, job: Job) -> Answer:
        """Run a job, and wait for its answer, if possible not longer than its limit.

        Raises:
            RunFailed: the workers are gone.
        """


@contextmanager
def open_bench(
    config: ExperimentConfig,
    study: StudyKind,
    address: str | None,
    wait_seconds: float | None,
    folder: Path,
    listener: Stages,
) -> Iterator[Bench]:
    """Open a bench for a config, and for all configs with the same number of workers.

    Args:
        wait_seconds: see `train`. None: the resources must be free now.
        folder: folder that Ray may write to.

    Raises:
        EnvironmentFault: GPUs, cores or the cluster are lacking.
    """
    if config.scaling.num_workers == 0:
        listener.stage("importing torch")
        yield LocalBench(config, study)
        return
    with _ray_bench(config, study, address, wait_seconds, folder, listener) as bench:
        yield bench


LACKING = ("too-few-cores", "too-few-gpus", "cluster-too-small")
"""Codes of errors that say that resources are lacking."""


class LazyBench:
    """A bench for measurements that a study can do without: opened for its first job, and an answer where it fails.

    Args:
        open: opens it.
    """

    def __init__(self, open: Callable[[], Bench]) -> None:
        self._open = open
        self._bench: Bench | None = None

    def do(self, job: Job) -> Answer:
        """Run a job, and wait for its answer; its kind is `no-room` if the resources are lacking, `lost` if the workers
        are gone, and `error` if anything else fails."""
        try:
            self._bench = self._bench or self._open()
            return self._bench.do(job)
        except RunFailed as error:
            return Answer(problem=str(error), kind="lost")
        except Exception as error:
            lacking = isinstance(error, EnvironmentFault) and error.code in LACKING
            return Answer(problem=first_line(error), kind=NO_ROOM if lacking else "error")


class LocalBench:
    """Runs the jobs in this process, each as if it were the first. A job that hangs outside of Python cannot be stopped
    here."""

    def __init__(self, config: ExperimentConfig, study: StudyKind) -> None:
        from paceline.cluster.preflight import check_resources, process_resources
        from paceline.engine.fresh import ProcessState

        self._base, self._config, self._study = WorkerSpec.of(config, None), config, study
        self._device = "cuda" if check_resources(config, process_resources(), "this machine") else "cpu"
        self._state = ProcessState()

    def do(self, job: Job) -> Answer:
        """Run a job, and wait for its answer."""
        import torch

        from paceline.bench.fresh_process import do_in_fresh_process
        from paceline.bench.job_execution import do_job
        from paceline.engine.dist_context import DistContext
        from paceline.engine.failure import describe

        if job.in_fresh_processes:
            return do_in_fresh_process(job, self._config, self._device, self._study)
        threads = torch.get_num_threads()
        try:
            # the user's code may print, but only the result may be written to stdout
            with redirect_stdout(sys.stderr), raising_after(job.limit_seconds):
                return do_job(job, self._base, DistContext.current(self._device))
        except LimitReached:
            return gave_up(job, self._study)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # such as a panic in Rust: a later launch would raise it again
            failure = describe(error, 0)
            return Answer(problem=failure.reason, kind=failure.kind, code=failure.problem_code)
        finally:
            torch.set_num_threads(threads)
            self._state.restore()


class RayBench:
    """Runs the jobs on a worker group that stays alive between jobs."""

    def __init__(self, coordinator: Any, fitting: TrainerThread, study: StudyKind) -> None:
        self._coordinator, self._fitting, self._study = coordinator, fitting, study

    def do(self, job: Job) -> Answer:
        """Run a job, and wait for its answer.

        Raises:
            RunFailed: the worker group has ended.
        """
        import ray

        try:
            if job.in_fresh_processes:
                self._renew()
            answer, begun = self._coordinator.do.remote(job), time.monotonic()
            while not ray.wait([answer], timeout=POLL_SECONDS)[0]:
                if not self._fitting.is_alive():
                    reason = first_line(self._fitting.error) if self._fitting.error else "it left early"
                    raise RunFailed(f"the worker group ended: {reason}")
                if time.monotonic() - begun > job.limit_seconds:
                    self._give_up(job)
            return ray.get(answer)  # type: ignore[no-any-return]
        except ray.exceptions.RayActorError as error:
            noun = self._study.noun
            raise RunFailed(f"the process that holds the {noun} together has died: {first_line(error)}") from None

    def _renew(self) -> None:
        """Make Ray Train restart the worker processes, for a job in fresh processes."""
        import ray

        from paceline.bench.coordinator import end_workers

        if end_workers(self._coordinator, RENEW_SECONDS):  # otherwise the job runs in a used process
            ray.get(self._coordinator.dismiss.remote())

    def _give_up(self, job: Job) -> None:
        import ray

        from paceline.bench.coordinator import end_workers

        ray.get(self._coordinator.give_up.remote(gave_up(job, self._study)))
        end_workers(self._coordinator, DISMISS_SECONDS)


@contextmanager
def _ray_bench(
    config: ExperimentConfig,
    study: StudyKind,
    address: str | None,
    wait_seconds: float | None,
    folder: Path,
    listener: Stages,
) -> Iterator[Bench]:
    from paceline.cluster.user_code import sent_modules
    from paceline.cluster.waiting_for_resources import ready_to_train, require_free
    from paceline.cluster.worker_group import ray_for_workers

    with (
        redirect_stdout(sys.stderr),  # workers' output arrives on stdout, which is only for the result
        ray_for_workers(address, lambda: sent_modules(config, study.section), listener) as finish_imports,
        terminating_interrupts(),  # Ray has taken SIGTERM for itself
    ):
        if wait_seconds is None:
            require_free(config)
        use_gpu = ready_to_train(config, wait_seconds or 0.0, listener)
        listener.stage("starting the workers")
        finish_imports()
        with _group(config, study, WorkerSpec.of(config, address).travelling(), use_gpu, folder) as bench:
            yield bench


@contextmanager
def _group(
    config: ExperimentConfig, study: StudyKind, base: WorkerSpec, use_gpu: bool, folder: Path
) -> Iterator[Bench]:
    from paceline.bench.coordinator import JobCoordinator, kill_group
    from paceline.cluster.worker_group import actor_on_this_node

    coordinator = actor_on_this_node(JobCoordinator).remote(config.parallel.timeout_seconds)
    fitting = TrainerThread(_trainer(config, study, base, coordinator, use_gpu, folder))
    fitting.start()
    try:
        yield RayBench(coordinator, fitting, study)
        coordinator.close.remote()
        fitting.join(LEAVE_SECONDS)
    finally:
        kill_group(coordinator, DISMISS_SECONDS)


def _trainer(
    config: ExperimentConfig, study: StudyKind, base: WorkerSpec, coordinator: Any, use_gpu: bool, folder: Path
) -> "TorchTrainer":
    from paceline.bench.coordinator import serve_jobs
    from paceline.cluster.preflight import of_fixed_size
    from paceline.cluster.torch_trainer import ray_scaling, torch_trainer

    given = {"coordinator": coordinator, "base": base, "slot": 0, "generation": 0}
    return torch_trainer(
        serve_jobs,
        given,
        ray_scaling(of_fixed_size(config), use_gpu),
        folder,
        study.section,
        START_TIMEOUT_SECONDS,
        # the coordinator limits the number of times that a job may lose its workers
        max_failures=-1,
        controller_failures=-1,
    )
