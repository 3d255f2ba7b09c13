"""Training on Ray: one TorchTrainer, whose workers run the engine, and one coordinator actor that they report to."""

import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster import heartbeats
from paceline.cluster.final_report import read_outcome
from paceline.cluster.heartbeats import SilentRank, silence_failure
from paceline.cluster.listener import ProgressFeed
from paceline.cluster.private_ray import keep_logs
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.run_costs import CostUnits
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import first_interrupt_calls
from paceline.cluster.train_launch import TrainLaunch, closing_status, counting, worker_spec
from paceline.cluster.user_code import sent_modules
from paceline.cluster.waiting_for_resources import ready_to_train
from paceline.cluster.worker_group import (
    NodeProcesses,
    TrainerThread,
    actor_on_this_node,
    dismiss,
    failure_of,
    ray_for_workers,
)
from paceline.errors import EnvironmentFault, first_line, last_line
from paceline.private_files import make_folder
from paceline.tracking.costs import Ledger
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_recorder import STOPPED_WAITING, has_ended
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, UploadReport, report_of

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer


POLL_SECONDS = 0.25
LEAVE_SECONDS = 4.0
"""Seconds that Ray Train may take to end a group whose run has ended. On a Ray that stays up, a failed group has this
time, too: if the driver ended its processes at once, Ray Train would take them for lost ones and start the group again.
The new group would hold resources for seconds without any work."""
ANSWER_SECONDS = 5.0
"""Seconds that the coordinator may take to answer a question that needs no work."""
CONCLUDE_SECONDS = 10.0
"""Seconds that the coordinator may take to record how the run ended, when the user does not want to wait for MLflow."""


def train_on_ray(launch: TrainLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train; return how that ended, and how its record was closed."""
    ray = sys.modules.get("ray")  # `ray_for_workers` imports it beside other work
    stays_up = ray is not None and ray.is_initialized()
    modules = partial(sent_modules, launch.config, "train")
    with (
        redirect_stdout(sys.stderr),  # what workers print arrives on stdout, where only the result belongs
        ray_for_workers(launch.address, modules, launch.listener) as finish_imports,
    ):
        use_gpu = ready_to_train(launch.config, launch.wait_seconds, launch.listener)
        asked = counting(launch, use_gpu, time.monotonic())
        node = NodeProcesses()
        coordinator = _start_run_coordinator(launch, asked)
        try:
            launch.listener.stage("starting the workers (usually 30 to 90 s on a small machine)")
            finish_imports()
            return _train(launch, coordinator, use_gpu, asked, node, stays_up)
        finally:
            # a worker that escapes finds its coordinator dead: then it neither begins to train nor puts a checkpoint in
            # place, and nothing that it reports reaches the run's journal
            dismiss(coordinator, coordinator.dismiss.remote, node)


def _train(
    launch: TrainLaunch, coordinator: Any, use_gpu: bool, asked: CostUnits, node: NodeProcesses, stays_up: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    fitting = TrainerThread(make_trainer(launch, coordinator, use_gpu))
    hurry = threading.Event()
    # around it all: between training and the end of its record, too, a signal must not throw the result away
    with first_interrupt_calls(hurry.set):
        ending = launch.note_ending(_follow(launch, coordinator, fitting, node))
        if ending["status"] == "failed":
            keep_logs()
        launch.listener.stage("recording the run in MLflow")
        # of an elastic run, only the coordinator knows how many workers there have been
        allocated = None if launch.config.scaling.is_elastic else asked.allocated
        closing = _close(launch, coordinator, closing_status(ending), allocated, hurry)
    if ending["status"] != "failed" or stays_up:
        fitting.join(LEAVE_SECONDS)
    return ending, closing


def _start_run_coordinator(launch: TrainLaunch, asked: CostUnits) -> Any:
    options = {"counting": asked, "store": launch.run.store, "silence_seconds": heartbeats.SILENCE_SECONDS}
    actor = actor_on_this_node(RunCoordinator, max_restarts=-1, max_task_retries=-1)
    return actor.remote(launch.run.folder.tracking, launch.record, **options)


def _follow(launch: TrainLaunch, coordinator: Any, fitting: TrainerThread, node: NodeProcesses) -> dict[str, Any]:
    """Run the trainer in its thread, show the events of the coordinator, and return how training ended."""
    feed = ProgressFeed(launch.listener, launch.derived.total_steps)
    is_interrupted = threading.Event()
    with first_interrupt_calls(is_interrupted.set):
        fitting.start()
        coordinator.start_uploading.remote()  # imports while Ray Train starts its first processes one after the other
        while fitting.is_alive() and not _show(launch, coordinator, feed) and node.dead() is None:
            fitting.join(POLL_SECONDS)
            if is_interrupted.is_set():  # again and again: a coordinator that dies forgets it
                feed.acknowledge_stop()
                coordinator.request_stop.remote()
    _show(launch, coordinator, feed)
    return _ending(launch, coordinator, fitting, node)


def _show(launch: TrainLaunch, coordinator: Any, feed: ProgressFeed) -> bool:
    """Show what is new; return whether training has reported how it ended.

    Raises:
        EnvironmentFault: the coordinator could not open the run's record.
    """
    import ray

    try:
        view = feed.show(lambda cursor: ray.get(coordinator.view.remote(cursor), timeout=ANSWER_SECONDS))
    except ray.exceptions.RayError as error:
        if getattr(error, "actor_init_failed", False):
            folder = launch.run.folder.tracking
            message = f"the run cannot be recorded in {folder}: {last_line(error)}"
            raise EnvironmentFault(message, "record-not-writable", folder=str(folder)) from None
        return False  # the coordinator is busy or being restarted: the next look comes soon
    return bool(view.ended)


def _ending(launch: TrainLaunch, coordinator: Any, fitting: TrainerThread, node: NodeProcesses) -> dict[str, Any]:
    ending = _outcome(coordinator, launch.run.folder.tracking)
    if ending is not None:
        if ending["status"] == "failed":
            failure = ending["failure"]
            code = failure.get("problem_code") or "run-failed"
            launch.listener.event("failed", {"reason": failure["reason"], "code": code})
        return ending
    failure = failure_of(node.dead(), fitting.error, lambda: silence_failure(_silent_ranks(coordinator)))
    return {"status": "failed", "failure": failure}


def _outcome(coordinator: Any, folder: Path) -> dict[str, Any] | None:
    """Return the end of training, from the coordinator, or from its file if it does not answer."""
    import ray

    try:
        return ray.get(coordinator.outcome.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except ray.exceptions.RayError:
        return read_outcome(folder)


def _silent_ranks(coordinator: Any) -> list[SilentRank]:
    import ray

    try:
        return ray.get(coordinator.silent_ranks.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except ray.exceptions.RayError:
        return []


def _close(
    launch: TrainLaunch,
    coordinator: Any,
    status: tuple[str, str | None],
    allocated: float | None,
    hurry: threading.Event,
) -> dict[str, Any]:
    """Close the record; return the result of that. If the coordinator does not answer, read the files that it has left.

    Args:
        hurry: once it is set, only the end of the run's own record is waited for, not MLflow.
    """
    import ray

    timeout_seconds, tracking = launch.close_seconds, launch.run.folder.tracking
    deadline = time.monotonic() + timeout_seconds + 30
    try:
        closing = coordinator.close.remote(*status, timeout_seconds, allocated, warnings=launch.warnings_to_record())
        while not ray.wait([closing], timeout=POLL_SECONDS)[0] and time.monotonic() < deadline:
            if hurry.is_set():
                deadline = min(deadline, time.monotonic() + CONCLUDE_SECONDS)
                if has_ended(tracking):
                    return _left_in(tracking, launch.record.uri, STOPPED_WAITING)
        report = ray.get(closing, timeout=0)
        history, cost = ray.get([coordinator.history.remote(), coordinator.cost.remote()], timeout=30)
        return {"report": report, "history": history, "cost": cost}
    except ray.exceptions.RayError as error:
        return _left_in(tracking, launch.record.uri, STOPPED_WAITING if hurry.is_set() else first_line(error))


def _left_in(folder: Path, uri: str, error: str) -> dict[str, Any]:
    """Return the state of a record in a folder on this machine whose coordinator does not answer."""
    points: list[tuple[str, float, int]] = []
    report = UploadReport(None, None, None, 0, error)
    with suppress(OSError):
        journal = Journal(folder / JOURNAL_FILE)
        entries = [MetricPoint.from_json(entry.content) for entry in journal.scan() if entry.kind == "point"]
        points = [(point.key, point.value, point.step) for point in entries]
        report = report_of(UploadCursor.load(folder / CURSOR_FILE), uri, journal, error)
    return {"report": asdict(report), "history": points, "cost": Ledger.read(folder)}


def make_trainer(launch: TrainLaunch, coordinator: Any, use_gpu: bool) -> "TorchTrainer":
    """Return the TorchTrainer of a run."""
    from paceline.cluster.torch_trainer import ray_scaling, torch_trainer
    from paceline.cluster.train_worker import train_on_worker

    config = launch.config
    given = {
        "worker_spec": worker_spec(launch).travelling(),
        "coordinator": coordinator,
        "silence_seconds": heartbeats.SILENCE_SECONDS,
    }
    folder = _ray_folder(launch.run.folder.path)
    scaling, seconds = ray_scaling(config, use_gpu), config.parallel.timeout_seconds
    return torch_trainer(train_on_worker, given, scaling, folder, "launch", seconds, config.scaling.max_failures)


def _ray_folder(run: Path) -> Path:
    folder = run / "ray"
    with writable(run):
        make_folder(folder)
    return folder
