"""Training that has come to its end in a launch whose command did not answer.

A run counts as finished once its command has answered. A driver that dies between the end of training and its answer
leaves the outcome in the run's folder, and the last checkpoint. The same command records and reports them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from paceline.cluster.final_report import read_outcome
from paceline.cluster.resume_rules import TrainedTo
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.run_costs import CostUnits
from paceline.cluster.run_folder import RunFolder, writable
from paceline.cluster.signals import first_interrupt_calls
from paceline.cluster.train_launch import TrainLaunch, closing_status
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.config.experiment import ExperimentConfig
from paceline.engine.manifest import BrokenCheckpoint, verify
from paceline.engine.outcome import Outcome
from paceline.engine.unrecorded import metrics_of
from paceline.storage.address import RunStore
from paceline.tracking.costs import Ledger, goal_of
from paceline.tracking.metric_points import MetricReading

_NEEDED = frozenset(
    field.name for field in fields(Outcome) if field.default is MISSING and field.default_factory is MISSING
)


def finished_training(run: ClaimedRun[RunFolder], config: ExperimentConfig) -> dict[str, Any] | None:
    """Return how training ended in an earlier launch; None where the run is new, or training is left to do.

    Args:
        config: of this command, which may ask for more training.
    """
    ending = read_outcome(run.folder.tracking) if run.resumed else None
    if ending is None or not has_finished(ending):
        return None
    done = TrainedTo(int(ending["step"]), int(ending["epoch"]))
    if ending.get("stopped_early") is None and done.is_shorter_than(config.trainer):
        return None
    if not ending["checkpoint"]:
        return ending
    checkpoint = _last_checkpoint(run, done.step)
    return None if checkpoint is None else {**ending, "checkpoint": checkpoint}


def has_finished(outcome: Mapping[str, Any]) -> bool:
    """Return True for the outcome of training that has come to its end, with all that a result needs."""
    return outcome["status"] == "finished" and outcome.keys() >= _NEEDED


def _last_checkpoint(run: ClaimedRun[RunFolder], step: int) -> str | None:
    """The place of the checkpoint at the end of training; None where there is no whole one."""
    if run.store is not None:
        return _stored_checkpoint(run.store, step)
    folder = run.folder.checkpoints / f"step-{step}"
    try:
        verify(folder)
    except BrokenCheckpoint:
        return None
    return str(folder)


def _stored_checkpoint(store: RunStore, step: int) -> str | None:
    from paceline.storage.stored_checkpoints import StoredCheckpoints

    return next((place for number, place, _ in StoredCheckpoints(store).kept() if number == step), None)


def record_finished(launch: TrainLaunch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Record such training without any of it; returns how it ended, and how its record was closed."""
    assert launch.ending is not None
    ending, folder = launch.ending, launch.run.folder.tracking
    launch.listener.stage("training has ended already; recording the run in MLflow")
    with writable(folder):
        coordinator = RunCoordinator(
            folder, launch.record, counting=_no_workers(launch, folder), store=launch.run.store
        )
    with first_interrupt_calls(coordinator.stop_waiting):
        _take_up_unrecorded(coordinator, Path(ending["checkpoint"]))
        warnings = launch.warnings_to_record()
        report = coordinator.close(*closing_status(ending), launch.close_seconds, warnings=warnings)
        return ending, {"report": report, "history": coordinator.history(), "cost": coordinator.cost()}


def _no_workers(launch: TrainLaunch, folder: Path) -> CostUnits | None:
    """The costs stay those of the launches that have trained."""
    earlier = Ledger.read(folder)
    if earlier is None:
        return None
    return CostUnits(earlier.unit, 0.0, launch.config.tracking.price_per_hour, goal_of(launch.config))


def _take_up_unrecorded(coordinator: RunCoordinator, checkpoint: Path) -> None:
    """Record what only the last checkpoint has, as training that resumes from it does."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        coordinator.record([MetricReading.from_json(points) for points in metrics_of(checkpoint) if points])
