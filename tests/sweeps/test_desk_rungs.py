"""A sweep's desk: rungs and their answers, trials that are pruned, and trials that rest and come back."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.sweeps.log import read_log
from paceline.sweeps.trials import Point
from paceline.sweeps.work import Report
from paceline.tracking.recorder import JOURNAL_FILE
from sweeps.desk_players import (
    Floor,
    played,
    rung,
    until_stopped,
    with_rungs,
)


def test_a_rung_is_told_once_and_its_answer_reaches_the_workers(floor: Callable[..., Floor], tmp_path: Path) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1, 3)]}

    async def scene() -> None:
        first = await sweep.run("0000")
        assert first == Report("running", {**rung(1)}, "step-1")
        assert not first.is_over
        second = await sweep.run("0000")
        assert second.values["step"] == 3
        last = await sweep.run("0000")
        assert last.state == "finished"

    played(sweep, scene)
    history = read_log(tmp_path / "sweep")
    assert [(id, values["step"]) for id, values in history.rungs] == [("0000", 1), ("0000", 3)]
    assert history.decided == history.rungs


def test_a_worker_that_asks_again_is_answered_without_bothering_tune(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def unheard(floor: Floor, work: Any) -> None:
        await floor.desk.rung(work.trial_id, work.attempt, rung(1))
        raise ProcessLookupError

    sweep.trainings = {"0000": [unheard, with_rungs(1, 3)]}

    async def scene() -> None:
        assert (await sweep.run("0000")).values["step"] == 1
        assert (await sweep.run("0000")).values["step"] == 3
        assert (await sweep.run("0000")).state == "finished"

    played(sweep, scene)


def test_a_group_that_starts_again_at_a_rung_waits_for_the_same_answer(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    asked = []

    async def dies_at_it(floor: Floor, work: Any) -> None:
        asked.append(asyncio.create_task(floor.desk.rung(work.trial_id, work.attempt, rung(1))))
        await asyncio.sleep(0.01)
        raise ProcessLookupError

    sweep.trainings = {"0000": [dies_at_it, with_rungs(1)]}

    async def scene() -> None:
        assert (await sweep.run("0000")).values["step"] == 1
        await sweep.until(lambda: len(sweep.taken) == 2)
        await asyncio.sleep(0.01)
        assert (await sweep.run("0000")).state == "finished"
        assert not await asked[0]  # nobody hears it

    played(sweep, scene)
    assert len(read_log(sweep.folder).rungs) == 1


def test_only_the_newest_of_tunes_calls_is_told(floor: Callable[..., Floor]) -> None:
    """Tune starts its part of a trial again when it loses it; the one that is gone must not take the news."""
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1)]}

    async def scene() -> None:
        # it waits for its seat, then for its rung
        calls = [asyncio.create_task(sweep.run("0000", visit=visit)) for visit in "abc"]
        *earlier, newest = await asyncio.gather(*calls)
        assert [report.state for report in earlier] == ["pending", "pending"]
        assert newest.values["step"] == 1
        assert (await sweep.run("0000", visit="c")).state == "finished"

    played(sweep, scene)
    assert len(sweep.taken) == 1


def test_a_trial_that_is_pruned_at_a_rung(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1, 3)]}

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.desk.prune("0000", "asha ended it")
        await sweep.desk.leave("0000")
        trial = await sweep.trial("0000")
        assert (trial.state, trial.reason, trial.samples) == ("pruned", "asha ended it", 10)
        assert (await sweep.run("0001")).state == "finished"
        again = await sweep.run("0000")
        assert (again.state, again.values["samples"], again.values["epochs"]) == ("pruned", 10, 0.1)

    played(sweep, scene)
    assert [id for *_, id, _ in sweep.taken] == ["0000", "0001"]


def test_a_trial_is_pruned_while_it_rests(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1, 3)]}

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.desk.leave("0000")
        assert (await sweep.trial("0000")).state == "paused"
        await sweep.desk.prune("0000", "why")
        assert (await sweep.trial("0000")).state == "pruned"

    played(sweep, scene)


def test_a_trial_is_pruned_while_it_waits_for_a_seat(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [until_stopped]}

    async def scene() -> None:
        first, second = asyncio.create_task(sweep.run("0000")), asyncio.create_task(sweep.run("0001"))
        await sweep.until_state("0001", "pending")
        await sweep.desk.prune("0001", "why")
        assert (await second).state == "pruned"
        await sweep.desk.prune("0000", "why")
        assert (await first).state == "pruned"

    played(sweep, scene)
    assert [id for *_, id, _ in sweep.taken] == ["0000"]


def test_nothing_changes_what_has_ended(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.desk.prune("0000", "too late")
        await sweep.desk.skip(Point("0000", {}), "too late")
        await asyncio.gather(sweep.desk.leave("0000"), sweep.desk.leave("0000"))
        assert (await sweep.run("0000")).state == "finished"

    played(sweep, scene)
    assert read_log(sweep.folder).trials["0000"].state == "finished"


def test_a_trial_leaves_and_comes_back_with_other_values(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(5, 6), with_rungs(3, 4)]}

    async def scene() -> None:
        await sweep.run("0000")
        assert (await sweep.run("0000")).values["step"] == 6
        await asyncio.gather(sweep.desk.leave("0000"), sweep.desk.leave("0000"))
        assert (await sweep.run("0001")).state == "finished"
        # from the state of another one that was less far
        assert (await sweep.run("0000", **{"optimizer.lr": 0.7})).values["step"] == 3
        assert (await sweep.run("0000", **{"optimizer.lr": 0.7})).values["step"] == 4
        trial = await sweep.trial("0000")
        assert (trial.overrides, trial.attempts) == ({"optimizer.lr": 0.7}, 2)
        assert (await sweep.run("0000", **{"optimizer.lr": 0.7})).state == "finished"

    played(sweep, scene)
    journal = (sweep.folder / "trials" / "0000" / "tracking" / JOURNAL_FILE).read_text()
    assert "optimizer.lr: 0.1 -> 0.7 at step 6" in journal


def test_a_trial_that_comes_back_before_it_has_left(floor: Callable[..., Floor]) -> None:
    """Tune keeps the trainable of a paused trial, and may go on with the trial in another one."""
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1, 2), with_rungs(2)]}

    async def scene() -> None:
        await sweep.run("0000", visit="a")
        assert (await sweep.run("0000", visit="b", **{"optimizer.lr": 0.7})).values["step"] == 2
        await sweep.desk.leave("0000", "a")
        assert (await sweep.run("0000", visit="b", **{"optimizer.lr": 0.7})).state == "finished"

    played(sweep, scene)
    assert [attempt for *_, attempt in sweep.taken] == [1, 2]
