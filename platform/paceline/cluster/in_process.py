"""Training in this process, without Ray (`scaling.num_workers: 0`)."""

from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, Any

from paceline.cluster.desk import Desk
from paceline.cluster.interrupts import first_interrupt_calls
from paceline.cluster.listener import Listener, Progress
from paceline.cluster.preflight import check_resources, process_resources, writable
from paceline.cluster.reporters import DeskReporter
from paceline.config.imports import user_folders
from paceline.tracking.redact import shareable

if TYPE_CHECKING:
    from paceline.cluster.experiment import Launch


def train_in_process(launch: "Launch") -> tuple[dict[str, Any], dict[str, Any]]:
    """How training ended, and how its record was closed.

    Raises:
        KeyboardInterrupt: it was told to end at once; the run can be resumed.
    """
    from paceline.cluster.experiment import closing_status

    launch.listener.stage("importing torch")
    with writable(launch.run.folder.tracking):
        desk = Desk(launch.run.folder.tracking, launch.record)
    feed = Feed(launch.listener, launch.derived.total_steps)
    try:
        with first_interrupt_calls(desk.request_stop):
            ending = _train(launch, desk, DeskReporter(desk, lambda: feed.show(desk.view)))
    except KeyboardInterrupt:
        launch.note_ending({"status": "stopped"})
        raise
    launch.note_ending(ending)
    launch.listener.stage("recording the run in MLflow")
    status, reason = closing_status(ending)
    report = desk.close(status, reason, launch.close_seconds)
    return ending, {"report": report, "history": desk.history()}


def _train(launch: "Launch", desk: Desk, reporter: DeskReporter) -> dict[str, Any]:
    import torch

    from paceline.cluster.worker import device_name, run_here

    use_gpu = check_resources(launch.config, process_resources(), "this machine")
    device = torch.device("cuda" if use_gpu else "cpu")
    with writable(launch.run.folder.tracking):
        desk.begin(device_name(device))
    return run_here(assignment(launch), device, reporter)


def assignment(launch: "Launch") -> Any:
    """What each training process is told."""
    from paceline.cluster.assignment import Assignment
    from paceline.cluster.experiment import python_objects

    return Assignment(
        config_json=shareable(launch.config).model_dump_json(),
        objects=python_objects(launch.config),
        checkpoints=str(launch.run.folder.checkpoints),
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
            elif kind == "batch":
                self._listener.planned([("batch", details["text"])])
            else:
                self._listener.event(kind, details)
        if view.step:
            state = asdict(view)
            self._listener.progress(
                Progress(state["step"], self._total_steps, state["samples_per_second"], state["metrics"])
            )
