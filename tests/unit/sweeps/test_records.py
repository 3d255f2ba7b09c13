"""A sweep's coordinator: the records of a sweep and of its trials, their best model, and when MLflow has them."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cluster.final_report import FinalReport
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.engine.checkpoint_files import Snapshot, write_checkpoint
from paceline.storage.address import OUTCOME
from paceline.sweeps.coordinator import sweep_recorder
from paceline.sweeps.messages import Attempt
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint, MetricReading
from paceline.tracking.recorded_run import read_points
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import UploadReport
from support.cluster.coordinators import NOWHERE, entries_of
from support.sweeps.simulation import ONE, SimulatedSweep, ending, ends_with, finishes, full_disk, play, simulated
from support.sweeps.unsent_sweeps import pretend_mlflow


class FakeMlflow:
    """Takes in everything but `unsent` entries; keeps run, status and reason of each record that is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unsent: int = 0, error: str | None = None) -> None:
        self.closed: list[tuple[str, str, str | None]] = []
        hand_over = RunRecorder.hand_over

        def closes(recorder: RunRecorder, status: Any, reason: Any = None) -> None:
            self.closed.append((recorder._record.run_id, status, reason))
            hand_over(recorder, status, reason)

        monkeypatch.setattr(RunRecorder, "hand_over", closes)
        pretend_mlflow(monkeypatch, lambda: UploadReport("http://page", "1", "run", unsent, error))


ENDED = Trial("0000", {"optimizer.lr": 0.1}, state="diverged", reason="the loss is nan")


def leave_open(sweep: SimulatedSweep, *trials: Trial) -> None:
    """Leave what a launch leaves whose process died after these trials had ended."""
    log = SweepLog(sweep.folder)
    for trial in trials:
        spec = sweep.spec(trial.id)
        RunCoordinator(Path(spec.folder) / "tracking", spec.record).metrics(
            [MetricReading(1, 1, {"val/accuracy": 0.5})]
        )
        log.append([trial_entry(trial)])
    log.close()


@pytest.mark.parametrize(
    ("unsent", "error", "run_id"), [(0, None, "run"), (3, None, ""), (0, "the end could not be recorded", "")]
)
def test_record_that_was_never_closed_is_closed(
    new_sweep: Any, monkeypatch: pytest.MonkeyPatch, unsent: int, error: str | None, run_id: str
) -> None:
    mlflow = FakeMlflow(monkeypatch, unsent, error)
    leave_open(new_sweep(), ENDED, replace(ENDED, id="0001", mlflow_run_id="known"))
    sweep = new_sweep()

    async def scene() -> None:
        await sweep.coordinator.prepare([ONE])
        await sweep.until(lambda: mlflow.closed)
        await sweep.close(seconds=60)

    play(sweep, scene)
    assert ("sweep/0000", "FAILED", "the loss is nan") in mlflow.closed
    assert "sweep/0001" not in [run for run, *_ in mlflow.closed]
    assert sweep.history().trials["0000"].mlflow_run_id == run_id
    entries = [(entry.kind, entry.content) for entry in Journal(sweep.tracking() / JOURNAL_FILE).scan()]
    assert ("tags", {"tags": {"paceline.trial_state": "diverged"}}) in entries


@simulated()
async def test_record_is_closed_at_the_end_when_mlflow_was_away(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = FakeMlflow(monkeypatch, unsent=3)
    assert (await sweep.run("0000")).state == "finished"
    await sweep.until_records_are_closed()
    assert [run for run, *_ in away.closed] == ["sweep/0000"]
    assert not (sweep.tracking() / OUTCOME).exists()
    assert (await sweep.trial("0000")).mlflow_run_id == ""
    FakeMlflow(monkeypatch)  # it is back
    await sweep.close(seconds=60)
    assert sweep.history().trials["0000"].mlflow_run_id == "run"
    statuses = [
        entry.content["status"] for entry in Journal(sweep.tracking() / JOURNAL_FILE).scan() if entry.kind == "status"
    ]
    assert statuses == ["FINISHED"]  # once: the trial ended when it ended


def test_resumed_trial_has_its_record_open_again(new_sweep: Any) -> None:
    leave_open(new_sweep(), replace(ENDED, state="running", reason="", mlflow_run_id="run"))
    sweep = new_sweep()

    async def scene() -> None:
        assert await sweep.states() == {"0000": "pending"}
        await sweep.run("0000")

    play(sweep, scene)
    assert sweep.history().trials["0000"].mlflow_run_id == ""  # MLflow did not answer


def values_of(sweep: SimulatedSweep, metric: str) -> list[float]:
    """The values of a metric in the sweep's own record."""
    entries = Journal(sweep.folder / "tracking" / JOURNAL_FILE).scan()
    return [entry.content["value"] for entry in entries if entry.content.get("key") == metric]


@simulated(objectives=(("val/accuracy", "max"), ("val/f1", "max")))
async def test_best_value_is_the_mean_over_the_seeds(sweep: SimulatedSweep) -> None:
    accuracies = {(0.1, 0): 0.75, (0.1, 1): 0.25, (0.2, 0): 0.5, (0.2, 1): 0.625}
    for number, ((rate, seed), accuracy) in enumerate(accuracies.items()):
        sweep.trainings[f"{number:04d}"] = [ends_with(metrics={"val/accuracy": accuracy, "val/f1": math.nan})]
        await sweep.run(f"{number:04d}", **{"optimizer.lr": rate, "seed": seed})
    await sweep.close()
    assert values_of(sweep, "best/val/accuracy")[-1] == 0.5625
    assert values_of(sweep, "best/val/f1") == []


@simulated()
async def test_trouble_of_a_record_is_a_warning_once_in_a_while(sweep: SimulatedSweep) -> None:
    async def with_trouble(sweep: SimulatedSweep, work: Attempt) -> None:
        with full_disk(work.trial_id):
            for step in range(50):
                reading = MetricReading(step, 1, {"val/accuracy": 0.5})
                assert not await sweep.coordinator.metrics(work.trial_id, work.attempt, [reading])
        await sweep.coordinator.event(work.trial_id, work.attempt, "warning", {"message": "slow"})
        await finishes(sweep, work)

    sweep.trainings = {"0000": [with_trouble]}
    await sweep.run("0000")
    warnings = [event for event in await sweep.events("warning") if event.get("trial") == "0000"]
    # its record may have been closed already, and could not be sent anywhere
    of_the_trial = [event["message"] for event in warnings if event.get("code") != "unsent"]
    assert ["No space left" in message for message in of_the_trial] == [True, False]
    assert of_the_trial[1] == "slow"


def test_only_the_final_checkpoint_of_the_best_trial_is_recorded_as_a_model(tmp_path: Path) -> None:
    record = RunRecord(tmp_path.name, "sweep", NOWHERE, "e")
    trials = [
        Trial("0000", {}, "finished", metrics={"val/loss": 0.5}),
        Trial("0001", {}, "finished", metrics={"val/loss": 0.2}),
        Trial("0002", {}, "pruned", metrics={"val/loss": 0.1}),
    ]
    for trial in trials:
        folder = tmp_path / "trials" / trial.id
        for step in (4, 8):
            snapshot = Snapshot(step, {"model": {"weight": torch.full((3,), float(step))}}, {"step": step})
            write_checkpoint(folder / "checkpoints", snapshot)
        own = replace(record, run_id=f"{tmp_path.name}/{trial.id}", parent=tmp_path.name)
        RunRecorder(folder / "tracking", own).append([MetricPoint("val/loss", 0.2, 8, 1008)])

    async def close() -> None:
        opened = sweep_recorder.SweepRecorder(tmp_path, record, [("val/loss", "min")])
        for trial in trials:
            opened.note(trial)
        await opened.close("FINISHED", None, "the note", {}, 0.1)

    asyncio.run(close())
    (entry,) = entries_of(tmp_path / "tracking", "model")
    assert (entry["step"], entry["run_id"]) == (8, f"{tmp_path.name}/0001")
    assert entry["uri"] == (tmp_path / "trials" / "0001" / "checkpoints" / "step-8").as_uri()
    assert entry["metrics"] == {"val/loss": [0.2, 1008]}


@pytest.mark.parametrize("status", ["finished", "failed"])
@simulated(num_trials=1)
async def test_metrics_that_come_with_the_end_are_recorded_once(sweep: SimulatedSweep, status: str) -> None:
    readings = [MetricReading(step, step, {"train/loss": 1.0 / step}) for step in (1, 2, 3)]

    async def cut_off_at_the_end(sweep: SimulatedSweep, work: Attempt) -> None:
        await sweep.coordinator.metrics(work.trial_id, work.attempt, readings[:1])
        last = FinalReport(ending(status), readings, lost=7)
        await sweep.coordinator.finish(work.trial_id, work.attempt, last.message())

    sweep.trainings["0000"] = [cut_off_at_the_end]
    await sweep.run("0000")
    await sweep.settle()
    assert status == "finished" or (await sweep.trial("0000")).metrics["train/loss"] == 1.0 / 3
    await sweep.close()
    assert [point.step for point in read_points(sweep.tracking(), ["train/loss"])] == [1, 2, 3]
    assert f'"{metrics.NOT_RECORDED}":"7 ' in (sweep.tracking() / JOURNAL_FILE).read_text()


def test_resumed_sweep_that_ends_no_trial_adds_to_the_recorded_cost(new_sweep: Any) -> None:
    for cost in (10.0, 12.5, 13.0):
        sweep = new_sweep()

        async def scene(sweep: SimulatedSweep = sweep, cost: float = cost) -> None:
            sweep._is_closed = True
            await sweep.coordinator.close("KILLED", None, "", {}, 0.05, {"cost/core_seconds": cost})

        play(sweep, scene)
    assert values_of(sweep, "cost/core_seconds") == [10.0, 12.5, 13.0]
