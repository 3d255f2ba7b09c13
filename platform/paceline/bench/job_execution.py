"""Execution of a job by all ranks of a worker group, or by this process alone."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import torch

from paceline.bench.jobs import Answer, Job
from paceline.cluster.preflight import worker_threads
from paceline.cluster.worker_spec import WorkerSpec
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together


def do_job(job: Job, base: WorkerSpec, ranks: DistContext) -> Answer:
    """Do a job. Every rank must call it; the answer of rank 0 counts, or that of a rank that failed.

    Raises:
        Exception: the loss of a process or of its connection.
    """

    def body() -> Mapping[str, Any]:
        configs = [base.for_trial(part).config() for part in job.configs]
        torch.set_num_threads(worker_threads(configs[0]))
        options = {**job.options, "root": job.folder} if job.folder else job.options
        return resolve_name(job.function)(configs, options, ranks)  # type: ignore[no-any-return]

    try:
        return Answer(failing_together(ranks, body))
    except RankFailed as error:
        return Answer(problem=error.failure.reason, kind=error.failure.kind, code=error.failure.problem_code)
