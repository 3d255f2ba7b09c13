"""The body of each process of a sweep's worker groups: one trial after the other, until there is none left."""

import os
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paceline
from paceline.cluster.reporters import ActorReporter
from paceline.cluster.train_worker import device_name, run_rank
from paceline.cluster.warm_worker import ask, serve
from paceline.cluster.worker_spec import TrialWorkerSpec, WorkerSpec
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.storage.address import CHECKPOINTS
from paceline.sweeps.messages import Attempt

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_OTHERS = (Path(paceline.__file__).parent, Path(os.__file__).parent)
"""Folders of code that is not the user's: Paceline's, and Python's own."""
_PACKAGES = {"site-packages", "dist-packages"}


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
    has_ended = False
    if ranks.is_first or ending["status"] == "failed":
        has_ended = ask(coordinator.finish.remote(*about, ending))
    if part.store is not None and (has_ended or ending["status"] == "finished"):
        # or copies of all trials would fill the disk; one that is paused needs its own again
        shutil.rmtree(part.store.folder / CHECKPOINTS, ignore_errors=True)


def naming_its_place(ending: dict[str, Any]) -> dict[str, Any]:
    """Return the end of a trial with the line of user code in the reason: `TypeError: no (mine.py:12 in build)`.

    To be called where the trial ran: only there it is known which folders hold other people's code.

    Args:
        ending: as `run_rank` returns it.
    """
    failure: Mapping[str, Any] = ending.get("failure", {})
    place = own_place(failure.get("traceback_text", "")) if failure.get("kind") == "error" else ""
    if not place:
        return ending
    first, *others = failure["reason"].split("\n")  # further lines may be a traceback of their own
    return {**ending, "failure": {**failure, "reason": "\n".join([f"{first} ({place})", *others])}}


def own_place(traceback_text: str) -> str:
    """The innermost line of user code, such as `mine.py:12 in build`; empty without one."""
    own = [frame for frame in _FRAME.findall(traceback_text) if _is_own(frame[0])]
    if not own:
        return ""
    file, line, function = own[-1]
    return f"{Path(file).name}:{line} in {function}"


def _is_own(file: str) -> bool:
    path = Path(file)
    is_made_up = file.startswith("<")  # such as <frozen importlib._bootstrap>
    return not (is_made_up or _PACKAGES.intersection(path.parts) or any(path.is_relative_to(one) for one in _OTHERS))
