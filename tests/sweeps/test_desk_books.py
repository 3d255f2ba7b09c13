"""A sweep's desk: what it keeps and tells of trials, and what a later launch makes of what was left open."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.desk import OUTCOME, Desk
from paceline.sweeps.desk import books
from paceline.sweeps.log import SweepLog, read_log
from paceline.sweeps.trials import Trial
from paceline.tracking.cursor import ShipReport
from paceline.tracking.journal import Journal
from paceline.tracking.points import Reading
from paceline.tracking.recorder import Recorder
from paceline.tracking.shipping import Shipper
from sweeps.desk_players import ONE, Floor, Training, ending, finishes, played, rung, states, until_stopped


class Mlflow:
    """Takes in everything but `unsent` entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unsent: int = 0) -> None:
        self.told: list[tuple[str, str, str | None]] = []
        close = Recorder.close

        def closes(recorder: Recorder, status: Any, reason: Any = None, *rest: Any, **named: Any) -> ShipReport:
            self.told.append((recorder._record.run_id, status, reason))
            return close(recorder, status, reason, *rest, **named)

        monkeypatch.setattr(Recorder, "close", closes)
        report = ShipReport("http://page", "1", "run", unsent, None)
        monkeypatch.setattr(Shipper, "start", lambda shipper: None)
        monkeypatch.setattr(Shipper, "finish", lambda shipper, seconds: report)


def left_open(sweep: Floor, *trials: Trial) -> None:
    """What a launch leaves whose process died after these trials had ended."""
    log = SweepLog(sweep.folder)
    for trial in trials:
        order = sweep.order(trial.id)
        Desk(Path(order.folder) / "tracking", order.record).metrics([Reading(1, 1, {"val/accuracy": 0.5})])
        log.trial(trial)
    log.close()


ENDED = Trial("0000", {"optimizer.lr": 0.1}, state="diverged", reason="the loss is nan")


@pytest.mark.parametrize(("unsent", "run_id"), [(0, "run"), (3, "")])
def test_a_record_that_was_never_closed(
    floor: Callable[..., Floor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsent: int, run_id: str
) -> None:
    mlflow = Mlflow(monkeypatch, unsent)
    left_open(floor(), ENDED, replace(ENDED, id="0001", mlflow_run_id="known"))
    again = floor()

    async def scene() -> None:
        await again.desk.prepare([ONE])
        await again.until(lambda: mlflow.told)
        await asyncio.sleep(0.1)

    played(again, scene)
    assert ("sweep/0000", "FAILED", "the loss is nan") in mlflow.told
    assert "sweep/0001" not in [run for run, *_ in mlflow.told]
    assert read_log(again.folder).trials["0000"].mlflow_run_id == run_id
    kinds = [(entry.kind, entry.content) for entry in Journal(trial_journal(again)).scan()]
    assert ("tags", {"tags": {"paceline.trial_state": "diverged"}}) in kinds


def test_a_record_for_which_mlflow_was_away_is_closed_at_the_end(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = floor()
    away = Mlflow(monkeypatch, 3)

    async def scene() -> None:
        assert (await sweep.run("0000")).state == "finished"
        await sweep.until(lambda: away.told)
        await asyncio.sleep(0.1)
        assert (await sweep.trial("0000")).mlflow_run_id == ""
        Mlflow(monkeypatch)  # it is back

    played(sweep, scene)
    assert read_log(sweep.folder).trials["0000"].mlflow_run_id == "run"


def trial_journal(sweep: Floor) -> Path:
    """The record of the first trial."""
    return sweep.folder / "trials" / "0000" / "tracking" / "journal.jsonl"


def test_a_trial_that_goes_on_has_its_record_open_again(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open(floor(), replace(ENDED, state="pending", mlflow_run_id="run"))
    again = floor()

    async def scene() -> None:
        await again.run("0000")

    played(again, scene)
    assert read_log(again.folder).trials["0000"].mlflow_run_id == ""  # MLflow did not answer


def test_a_trial_that_a_killed_launch_ran_is_pending(floor: Callable[..., Floor]) -> None:
    left_open(floor(), replace(ENDED, state="running", reason=""))
    again = floor()

    async def scene() -> None:
        assert states(await again.desk.trials()) == {"0000": "pending"}

    played(again, scene)


def test_only_what_has_changed_is_sent(floor: Callable[..., Floor]) -> None:
    sweep = floor(points=4)
    sweep.trainings = {"0002": [until_stopped]}

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.run("0001")
        view = await sweep.desk.view(0)
        assert [trial.id for trial in view.trials] == ["0000", "0001"]
        await sweep.until(lambda: not sweep.desk._hall.runs)  # their records are closed
        view = await sweep.desk.view(0)
        call = asyncio.create_task(sweep.run("0002"))
        await sweep.until_state("0002", "running")
        newer = await sweep.desk.view(0, view.version)
        assert [trial.id for trial in newer.trials] == ["0002"]
        assert newer.version > view.version
        await sweep.desk.request_stop()
        await call
        last = await sweep.desk.view(0, newer.version)
        assert states(last.trials) == {"0002": "pending"}
        assert len((await sweep.desk.view(0)).trials) == 3

    played(sweep, scene)


def test_the_best_trial_is_looked_for_once_in_a_while(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    ranked = books.ranked
    monkeypatch.setattr(books, "ranked", lambda trials, by: looks.append(len(trials)) or ranked(trials, by))
    monkeypatch.setattr(books, "PARENT_SECONDS", 60.0)
    sweep = floor(points=30)

    async def scene() -> None:
        for number in range(20):
            await sweep.run(f"{number:04d}")

    played(sweep, scene)
    assert len(looks) <= 2
    assert looks[-1] == 20
    assert told_of_the_sweep(sweep, "trials/finished")[-1] == 20


def told_of_the_sweep(sweep: Floor, metric: str) -> list[float]:
    """The values of a metric in the sweep's own record."""
    entries = Journal(sweep.folder / "tracking" / "journal.jsonl").scan()
    return [entry.content["value"] for entry in entries if entry.content.get("key") == metric]


def test_the_best_value_is_the_mean_over_the_seeds(floor: Callable[..., Floor]) -> None:
    sweep = floor(objectives=(("val/accuracy", "max"), ("val/f1", "max")))
    accuracies = {(0.1, 0): 0.75, (0.1, 1): 0.25, (0.2, 0): 0.5, (0.2, 1): 0.625}

    def reports(accuracy: float) -> Training:
        async def train(floor: Floor, work: Any) -> None:
            values = {"val/accuracy": accuracy, "val/f1": math.nan}
            await floor.desk.finish(work.trial_id, work.attempt, ending(metrics=values))

        return train

    async def scene() -> None:
        for number, ((rate, seed), accuracy) in enumerate(accuracies.items()):
            id = f"{number:04d}"
            sweep.trainings[id] = [reports(accuracy)]
            await sweep.run(id, **{"optimizer.lr": rate, "seed": seed})

    played(sweep, scene)
    assert told_of_the_sweep(sweep, "best/val/accuracy")[-1] == 0.5625
    assert told_of_the_sweep(sweep, "best/val/f1") == []


def test_little_is_kept_of_a_trial_that_has_ended(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.until(lambda: not sweep.desk._hall.runs)
        await sweep.desk.prune("0000", "too late")
        await sweep.desk.give_up("0000", "too late")
        await sweep.desk.skip(sweep.order("0000").point, "too late")
        assert (await sweep.run("0000")).values["samples"] == 100

    played(sweep, scene)
    assert not (sweep.folder / "trials" / "0000" / "tracking" / OUTCOME).exists()
    assert read_log(sweep.folder).trials["0000"].state == "finished"


def test_the_trouble_of_a_trials_record_is_told(floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = floor()

    async def with_trouble(floor: Floor, work: Any) -> None:
        append = Journal.append

        def fails(journal: Journal, items: Any) -> None:
            if "0000" in str(journal.path):
                raise OSError("no space")
            append(journal, items)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", fails)
            for step in range(50):
                reading = Reading(step, 1, {"val/accuracy": 0.5})
                assert not await floor.desk.metrics(work.trial_id, work.attempt, [reading])
        await floor.desk.event(work.trial_id, work.attempt, "warning", {"message": "slow"})
        await finishes(floor, work)

    sweep.trainings = {"0000": [with_trouble]}

    async def scene() -> None:
        await sweep.run("0000")
        told = [warning for warning in await sweep.events("warning") if warning.get("trial") == "0000"]
        assert len(told) == 2
        assert "no space" in told[0]["message"]
        assert told[1]["message"] == "slow"

    played(sweep, scene)


def test_a_rung_that_an_interruption_left_open_is_asked_again(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    answers = []

    async def waits(floor: Floor, work: Any) -> None:
        answers.append(await floor.desk.rung(work.trial_id, work.attempt, rung(1)))
        await floor.desk.finish(work.trial_id, work.attempt, ending("stopped"))

    sweep.trainings = {"0000": [waits]}

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.desk.request_stop()
        await sweep.until_state("0000", "pending")

    played(sweep, scene)
    assert answers == [None]
    assert read_log(sweep.folder).decided == []

    again = floor()
    again.trainings = {"0000": [waits]}

    async def later() -> None:
        assert (await again.run("0000")).values["step"] == 1
        await again.desk.prune("0000", "asha ended it")
        await again.until_state("0000", "pruned")

    played(again, later)
    assert answers == [None, False]
    assert len(read_log(again.folder).decided) == 1
