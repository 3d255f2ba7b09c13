"""The process of a build: the benchmarks of one job, where nothing has been built before."""

from dataclasses import asdict
from typing import Any

from paceline.bench.jobs import Answer, Job, gave_up
from paceline.cluster.separate_process import SeparateProcess, answer
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault, PacelineError


def build(job: Job, config: ExperimentConfig, device: str) -> Answer:
    """Do a job in a process of its own, and wait for it.

    Args:
        config: the baseline.
        device: `cpu` or `cuda`.
    """
    process = SeparateProcess(__name__, config, (job, device))
    try:
        return Answer(**process.answer(job.limit_seconds))
    except EnvironmentFault as fault:
        return gave_up(job) if fault.code == "took-too-long" else Answer(problem=fault.message, kind="lost")
    except PacelineError as error:
        return Answer(problem=error.message, kind="error")
    finally:
        process.end()


def _work(config: ExperimentConfig, options: Any) -> dict[str, Any]:
    from paceline.cluster.user_code import python_objects
    from paceline.cluster.worker_spec import WorkerSpec
    from paceline.engine.dist_context import DistContext
    from paceline.tuneups.job_execution import do_job

    job, device = options
    base = WorkerSpec(config.model_dump_json(), objects=python_objects(config))
    return asdict(do_job(job, base, DistContext.current(device)))


if __name__ == "__main__":
    answer(_work)
