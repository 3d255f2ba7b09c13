"""What runs in each process of a sweep's worker groups: one trial after the other, until there is none left."""

import pickle
from typing import Any

from paceline.cluster.assignment import Assignment, TrialPart
from paceline.cluster.reporters import ActorReporter
from paceline.cluster.serving import ask, serve
from paceline.cluster.worker import device_name, run_rank
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.sweeps.desk.tracebacks import naming_its_place
from paceline.sweeps.work import Work


def serve_trials(loop_config: dict[str, Any]) -> None:
    """Ray Train's training function: one call per worker process, for as many trials as the desk has."""
    desk, base = loop_config["desk"], loop_config["base"]
    serve(loop_config, lambda work, ranks: _run(work, base, desk, ranks))


def _run(work: Work, base: Assignment, desk: Any, ranks: DistContext) -> None:
    about = work.trial_id, work.attempt
    reporter = ActorReporter(desk, about) if ranks.is_first else None
    if reporter is not None:
        desk.begin.remote(*about, device_name(ranks.device))
    part: TrialPart = pickle.loads(work.assignment)
    ending = naming_its_place(run_rank(base.for_trial(part), ranks, reporter or MemoryReporter()))
    if reporter is not None:
        ending = reporter.last_words(ending)
    if ranks.is_first or ending["status"] == "failed":
        ask(desk.finish.remote(*about, ending))
