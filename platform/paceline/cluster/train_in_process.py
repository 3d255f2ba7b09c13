"""Training in this process, without Ray (`scaling.num_workers: 0`)."""

from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import Any

from paceline.cluster.extension import EXTENDED_FROM_STEP
from paceline.cluster.listener import Listener, RunProgress
from paceline.cluster.preflight import check_resources, process_resources, writable
from paceline.cluster.python_objects import python_objects
from paceline.cluster.reporters import InProcessReporter
from paceline.cluster.run_coordinator import RunCoordinator, unrecorded_text
from paceline.cluster.run_costs import CostUnits, unit_of
from paceline.cluster.run_events import START, EventCursor
from paceline.cluster.signals import first_interrupt_calls
from paceline.cluster.train_launch import TrainLaunch, closing_status
from paceline.config.imports import user_folders
from paceline.config.shareable import shareable
from paceline.tracking.costs import goal_of

FINAL_REPORT_SECONDS = 2.0
"""How long a command that was told to end at once waits for its last metrics to be written down."""


def train_in_process(launch: TrainLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """How training ended, and how its record was closed. A signal that comes once it is over ends the waiting for
    MLflow.

    Raises:
        KeyboardInterrupt: it was told to end at once; the run can be resumed.
    """
    launch.listener.stage("importing torch")
    with writable(launch.run.folder.tracking):
        coordinator = RunCoordinator(
            launch.run.folder.tracking, launch.record, uploads_in_own_process=True, store=launch.run.store
        )
    # around it all: between training and the end of its record, too, a signal must not throw the result away
    with first_interrupt_calls(coordinator.stop_waiting):
        ending = launch.note_ending(_trained(launch, coordinator))
        launch.listener.stage("recording the run in MLflow")
        status, reason = closing_status(ending)
        report = coordinator.close(status, reason, launch.close_seconds)
        return ending, {"report": report, "history": coordinator.history(), "cost": coordinator.cost()}


def _trained(launch: TrainLaunch, coordinator: RunCoordinator) -> dict[str, Any]:
    feed = ProgressFeed(launch.listener, launch.derived.total_steps)
    reporter = InProcessReporter(coordinator, lambda: feed.show(coordinator.view))
    coordinator.start_uploading()  # what talks to MLflow comes up while this process imports torch
    try:
        with first_interrupt_calls(coordinator.request_stop):
            return _train(launch, coordinator, reporter)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            launch.note_ending({"status": "stopped"})
        reporter.close(FINAL_REPORT_SECONDS)
        if (step := reporter.unsafe_from()) is not None:
            launch.listener.event("warning", {"code": "unrecorded", "message": unrecorded_text(step)})
        coordinator.abandon()
        raise


def _train(launch: TrainLaunch, coordinator: RunCoordinator, reporter: InProcessReporter) -> dict[str, Any]:
    import torch

    from paceline.cluster.train_worker import device_name, run_here

    use_gpu = check_resources(launch.config, process_resources(), "this machine")
    device = torch.device("cuda" if use_gpu else "cpu")
    with writable(launch.run.folder.tracking):
        coordinator.start_counting(counting(launch, use_gpu, launch.began))
        coordinator.begin(device_name(device))
    ending = run_here(worker_spec(launch), device, reporter)
    coordinator.finish(reporter.final_report(ending))
    return ending


def counting(launch: TrainLaunch, use_gpu: bool, since: float) -> CostUnits:
    """How the run's cost is counted.

    Args:
        since: when its processes were asked for, of `time.monotonic`.
    """
    tracking = launch.config.tracking
    unit, units = unit_of(launch.config, use_gpu)
    workers = max(1, launch.config.scaling.num_workers)
    return CostUnits(unit, units, tracking.price_per_hour, goal_of(launch.config), since, workers=workers)


def worker_spec(launch: TrainLaunch) -> Any:
    """The work of each training process."""
    from paceline.cluster.worker_spec import WorkerSpec

    return WorkerSpec(
        config_json=shareable(launch.config).model_dump_json(),
        objects=python_objects(launch.config),
        checkpoints=str(launch.run.folder.checkpoints),
        store=launch.run.store,
        extended_from_step=launch.run.folder.read().get(EXTENDED_FROM_STEP),
        # to a cluster the code itself travels, see `user_code`
        import_folders=() if launch.address else user_folders(),
    )


class ProgressFeed:
    """Passes what a coordinator has to tell on to the listener, each thing once."""

    def __init__(self, listener: Listener, total_steps: int | None) -> None:
        self._cursor = START
        self._lock = Lock()  # the checkpoint's thread has news too
        self._listener = listener
        self._total_steps = total_steps

    def show(self, look: Callable[[EventCursor], Any]) -> Any:
        """Tell the listener what is new; `look` gives a coordinator's view with the events after a cursor."""
        with self._lock:
            view = look(self._cursor)
            self._cursor = view.cursor
            self._show(view)
        return view

    def _show(self, view: Any) -> None:
        for kind, details in view.events:
            if kind == "stage":
                self._listener.stage(details["text"])
            elif kind == "plan":
                self._total_steps = details["total_steps"]
            elif kind in ("batch", "length", "optimizer"):
                self._listener.planned([(kind, details["text"])])
            else:
                self._listener.event(kind, details)
        if view.step:
            state = asdict(view)
            self._listener.progress(
                RunProgress(state["step"], self._total_steps, state["samples_per_second"], state["metrics"])
            )
