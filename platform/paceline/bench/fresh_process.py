"""The process of one job, where nothing has been built before."""

from dataclasses import asdict
from typing import Any

from paceline.bench.jobs import Answer, Job, StudyKind, gave_up
from paceline.cluster.separate_process import SeparateProcess, answer
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault, PacelineError
from paceline.garbage_collection import collector_paused


def do_in_fresh_process(job: Job, config: ExperimentConfig, device: str, study: StudyKind) -> Answer:
    """Do a job in a process of its own, and wait for it.

    Args:
        config: of the study.
        device: `cpu` or `cuda`.
    """
    process = SeparateProcess(__name__, config, (job, device))
    try:
        return Answer(**process.answer(job.limit_seconds))
    except EnvironmentFault as fault:
        return gave_up(job, study) if fault.code == "took-too-long" else Answer(problem=fault.message, kind="lost")
    except PacelineError as error:
        return Answer(problem=error.message, kind="error")
    finally:
        process.end()


def _work(config: ExperimentConfig, options: Any) -> dict[str, Any]:
    with collector_paused():
        from paceline.bench.job_execution import do_job
        from paceline.cluster.user_code import python_objects
        from paceline.cluster.worker_spec import WorkerSpec
        from paceline.engine.dist_context import DistContext

    job, device = options
    base = WorkerSpec(config.model_dump_json(), objects=python_objects(config))
    return asdict(do_job(job, base, DistContext.current(device)))


if __name__ == "__main__":
    answer(_work)
