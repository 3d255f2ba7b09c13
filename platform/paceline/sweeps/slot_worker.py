"""The body of each process of a sweep's worker groups: one trial after the other, until there is none left."""

import pickle
import shutil
from typing import Any

from paceline.cluster.reporters import ActorReporter
from paceline.cluster.train_worker import device_name, run_rank
from paceline.cluster.warm_worker import ask, serve
from paceline.cluster.worker_spec import TrialWorkerSpec, WorkerSpec
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.storage.working_copies import CHECKPOINTS
from paceline.sweeps.coordinator.tracebacks import naming_its_place
from paceline.sweeps.messages import Attempt


def serve_trials(loop_config: dict[str, Any]) -> None:
    """Ray Train's training function: one call per worker process, for as many trials as the coordinator has."""
    coordinator, base = loop_config["coordinator"], loop_config["base"]
    serve(loop_config, lambda work, ranks: _run(work, base, coordinator, ranks))


def _run(work: Attempt, base: WorkerSpec, coordinator: Any, ranks: DistContext) -> None:
    about = work.trial_id, work.attempt
    reporter = ActorReporter(coordinator, about) if ranks.is_first else None
    if reporter is not None:
        coordinator.begin.remote(*about, device_name(ranks.device))
    part: TrialWorkerSpec = pickle.loads(work.worker_spec)
    ending = naming_its_place(run_rank(base.for_trial(part), ranks, reporter or MemoryReporter()))
    if reporter is not None:
        ending = reporter.final_report(ending)
    if ranks.is_first or ending["status"] == "failed":
        ask(coordinator.finish.remote(*about, ending))
    if part.store is not None and ending["status"] == "finished":
        shutil.rmtree(
            part.store.folder / CHECKPOINTS, ignore_errors=True
        )  # or copies of all trials would fill the disk
