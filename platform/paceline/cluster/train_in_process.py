"""Training in this process, without Ray (`scaling.num_workers: 0`)."""

from typing import Any

from paceline.cluster.final_report import unrecorded_text
from paceline.cluster.listener import ProgressFeed
from paceline.cluster.preflight import check_resources, process_resources
from paceline.cluster.reporters import InProcessReporter
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import first_interrupt_calls
from paceline.cluster.train_launch import TrainLaunch, closing_status, counting, worker_spec
from paceline.garbage_collection import collector_paused

FINAL_REPORT_SECONDS = 2.0
"""Seconds that a command that has to end at once waits for its last metrics to be recorded."""


def train_in_process(launch: TrainLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train; return how that ended, and how its record was closed. A signal at the end ends the waiting for MLflow.

    Raises:
        KeyboardInterrupt: it had to end at once; the run can be resumed.
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
        report = coordinator.close(status, reason, launch.close_seconds, warnings=launch.warnings_to_record())
        return ending, {"report": report, "history": coordinator.history(), "cost": coordinator.cost()}


def _trained(launch: TrainLaunch, coordinator: RunCoordinator) -> dict[str, Any]:
    feed = ProgressFeed(launch.listener, launch.derived.total_steps)

    def show() -> None:
        if coordinator.stop_requested:
            feed.acknowledge_stop()
        feed.show(coordinator.view)

    reporter = InProcessReporter(coordinator, show)
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
    with collector_paused():
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
