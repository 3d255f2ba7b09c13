"""The body of each training process, under Ray Train or in the driver."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline._compat.ray import TRAINING_ERRORS
from paceline.cluster.heartbeats import Heartbeat
from paceline.cluster.initial_weights import weights_finder
from paceline.cluster.preflight import worker_threads
from paceline.cluster.worker_spec import WorkerSpec
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.fresh import release_memory
from paceline.engine.host_allocator import return_freed_memory
from paceline.engine.outcome import Outcome
from paceline.engine.reporter import MemoryReporter, Reporter
from paceline.engine.rungs import Rungs
from paceline.errors import text_of
from paceline.redaction import redact, redact_tree
from paceline.starting_folder import drop_starting_folder
from paceline.storage.stored_checkpoints import StoredCheckpoints


def run_rank(worker_spec: WorkerSpec, ranks: DistContext, reporter: Reporter) -> dict[str, Any]:
    """Train as one rank and tell how it ended: `{"status": "finished" | "stopped" | "failed", ...}`.

    With `elapsed_seconds`, the time of all this, which the outcome's `seconds` are the parts of.

    An error of the training code is reported, not raised: Ray Train would start the group again, and it would only fail
    again. What is raised is the loss of a process or of its connection, which a new start can fix.
    """

    begun = perf_counter()

    def train() -> Outcome:
        config = worker_spec.config()
        torch.set_num_threads(worker_threads(config))
        rungs = Rungs(**worker_spec.rungs) if worker_spec.rungs is not None else None
        store = StoredCheckpoints(worker_spec.store) if worker_spec.store is not None else None
        checkpoints = store.folder if store is not None else Path(worker_spec.checkpoints)
        trainer = build_trainer(
            config,
            ranks,
            reporter,
            checkpoints,
            rungs,
            store,
            shown_name=redact,
            extended_from_step=worker_spec.extended_from_step,
            find_weights=weights_finder(config),
        )
        startup = perf_counter() - begun
        outcome = trainer.fit()
        return replace(outcome, seconds={"startup": startup, **outcome.seconds})

    try:
        outcome = failing_together(ranks, train)
    except RankFailed as error:
        # here, where the secrets are known that the user's code may have put into it
        return {"status": "failed", "failure": redact_tree(asdict(error.failure))}
    status = "stopped" if outcome.stopped else "finished"
    return {"status": status, **asdict(outcome), "elapsed_seconds": perf_counter() - begun}


def train_on_worker(loop_config: dict[str, Any]) -> None:
    """Ray Train's training function: one call per worker process."""
    import ray
    import ray.train.torch

    from paceline.cluster.reporters import ActorReporter

    drop_starting_folder()
    coordinator = loop_config["coordinator"]
    # pickled, since a coordinator that takes an actor's handle as it is imports all of the actor's class: seconds of
    # torch
    me = ray.cloudpickle.dumps(ray.get_runtime_context().current_actor)
    try:
        wanted = ray.get(coordinator.enter.remote(me))
    except ray.exceptions.ActorDiedError:
        wanted = False
    if not wanted:
        return  # the group was started again although the run has ended, or the launch is over
    ranks = DistContext.current(ray.train.torch.get_device())
    heartbeat = Heartbeat(coordinator.beat.remote, ranks.rank, loop_config["silence_seconds"])
    heartbeat.start()
    reporter = ActorReporter(coordinator) if ranks.is_first else None
    if reporter is not None:
        coordinator.begin.remote(device_name(ranks.device), ranks.world_size)
    try:
        ending = run_rank(loop_config["worker_spec"], ranks, reporter or MemoryReporter())
    except Exception as error:
        coordinator.lose_group.remote(ranks.rank, text_of(error).strip().partition("\n")[0])
        logging.getLogger(TRAINING_ERRORS).disabled = True  # the traceback says nothing of the rank that is gone
        raise
    finally:
        heartbeat.stop()
    if reporter is not None:
        ending = reporter.final_report(ending)
    if ranks.is_first or ending["status"] == "failed":
        with suppress(ray.exceptions.ActorDiedError):  # then the launch is over, and nobody asks any more
            ray.get(coordinator.finish.remote(ending))


def device_name(device: torch.device) -> str:
    """Return what the run is computed on, as a person would call it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def run_here(worker_spec: WorkerSpec, device: torch.device, reporter: Reporter) -> dict[str, Any]:
    """Train in this process, without Ray. Its peak memory is that of this run alone, whatever was run here before."""
    release_memory()
    try:
        return keeping_threads(lambda: run_rank(worker_spec, DistContext.current(device), reporter))
    finally:
        return_freed_memory()  # the process may be a notebook


def keeping_threads(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run something in this process that sets the number of torch's threads, and set it back."""
    threads = torch.get_num_threads()
    try:
        return run()
    finally:
        torch.set_num_threads(threads)
