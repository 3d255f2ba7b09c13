"""Training in this process, without Ray (`scaling.num_workers: 0`)."""

from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import Any

from paceline.cluster.counting import Counting, unit_of
from paceline.cluster.desk import Desk, unrecorded_text
from paceline.cluster.extension import EXTENDED_FROM_STEP
from paceline.cluster.interrupts import first_interrupt_calls
from paceline.cluster.launch import Launch, closing_status
from paceline.cluster.listener import Listener, Progress
from paceline.cluster.preflight import check_resources, process_resources, writable
from paceline.cluster.python_objects import python_objects
from paceline.cluster.reporters import DeskReporter
from paceline.config.imports import user_folders
from paceline.config.shareable import shareable
from paceline.tracking.costs import goal_of

LAST_WORDS_SECONDS = 2.0
"""How long a command that was told to end at once waits for its last metrics to be written down."""


def train_in_process(launch: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    """How training ended, and how its record was closed. A signal that comes once it is over ends the waiting for
    MLflow.

    Raises:
        KeyboardInterrupt: it was told to end at once; the run can be resumed.
    """
    launch.listener.stage("importing torch")
    with writable(launch.run.folder.tracking):
        desk = Desk(launch.run.folder.tracking, launch.record, ships_apart=True, store=launch.run.store)
    # around it all: between training and the end of its record, too, a signal must not throw the result away
    with first_interrupt_calls(desk.stop_waiting):
        ending = _trained(launch, desk)
        launch.note_ending(ending)
        launch.listener.stage("recording the run in MLflow")
        status, reason = closing_status(ending)
        report = desk.close(status, reason, launch.close_seconds)
        return ending, {"report": report, "history": desk.history(), "cost": desk.cost()}


def _trained(launch: Launch, desk: Desk) -> dict[str, Any]:
    feed = Feed(launch.listener, launch.derived.total_steps)
    reporter = DeskReporter(desk, lambda: feed.show(desk.view))
    desk.ship()  # what talks to MLflow comes up while this process imports torch
    try:
        with first_interrupt_calls(desk.request_stop):
            return _train(launch, desk, reporter)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            launch.note_ending({"status": "stopped"})
        reporter.close(LAST_WORDS_SECONDS)
        if (step := reporter.unsafe_from()) is not None:
            launch.listener.event("warning", {"code": "unrecorded", "message": unrecorded_text(step)})
        desk.abandon()
        raise


def _train(launch: Launch, desk: Desk, reporter: DeskReporter) -> dict[str, Any]:
    import torch

    from paceline.cluster.worker import device_name, run_here

    use_gpu = check_resources(launch.config, process_resources(), "this machine")
    device = torch.device("cuda" if use_gpu else "cpu")
    with writable(launch.run.folder.tracking):
        desk.start_counting(counting(launch, use_gpu, launch.began))
        desk.begin(device_name(device))
    ending = run_here(assignment(launch), device, reporter)
    desk.finish(reporter.last_words(ending))
    return ending


def counting(launch: Launch, use_gpu: bool, since: float) -> Counting:
    """How the run's cost is counted.

    Args:
        since: when its processes were asked for, of `time.monotonic`.
    """
    tracking = launch.config.tracking
    unit, units = unit_of(launch.config, use_gpu)
    workers = max(1, launch.config.scaling.num_workers)
    return Counting(unit, units, tracking.price_per_hour, goal_of(launch.config), since, workers=workers)


def assignment(launch: Launch) -> Any:
    """The work of each training process."""
    from paceline.cluster.assignment import Assignment

    return Assignment(
        config_json=shareable(launch.config).model_dump_json(),
        objects=python_objects(launch.config),
        checkpoints=str(launch.run.folder.checkpoints),
        store=launch.run.store,
        extended_from_step=launch.run.folder.read().get(EXTENDED_FROM_STEP),
        # to a cluster the code itself travels, see `user_code`
        import_folders=() if launch.address else user_folders(),
    )


class Feed:
    """Passes what a desk has to tell on to the listener, each thing once."""

    def __init__(self, listener: Listener, total_steps: int | None) -> None:
        self.seen = 0
        self._lock = Lock()  # the checkpoint's thread has news too
        self._listener = listener
        self._total_steps = total_steps

    def show(self, look: Callable[[int], Any]) -> Any:
        """Tell the listener what is new; `look` gives a desk's view for a watcher that has seen so many events."""
        with self._lock:
            view = look(self.seen)
            self._show(view)
        return view

    def _show(self, view: Any) -> None:
        for kind, details in view.events:
            self.seen += 1
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
                Progress(state["step"], self._total_steps, state["samples_per_second"], state["metrics"])
            )
