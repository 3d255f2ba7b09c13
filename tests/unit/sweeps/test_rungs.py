"""A sweep's coordinator: rungs and their answers, trials that are pruned, and trials that pause and come back."""

import asyncio
from typing import Any

from paceline.sweeps.messages import TrialReport
from paceline.sweeps.trial import PlannedTrial
from paceline.tracking.journal import JOURNAL_FILE
from support.sweeps.simulation import SimulatedSweep, ending, play, rung, simulated, until_stopped, with_rungs


@simulated()
async def test_rung_is_reported_once_and_its_answer_reaches_the_workers(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [with_rungs(1, 3)]}
    first = await sweep.run("0000")
    assert first == TrialReport("running", rung(1), "step-1")
    assert not first.is_over
    assert (await sweep.run("0000")).values["step"] == 3
    assert (await sweep.run("0000")).state == "finished"
    history = sweep.history()
    assert [(id, values["step"]) for id, values in history.rungs] == [("0000", 1), ("0000", 3)]
    assert history.decided == history.rungs


@simulated()
async def test_worker_that_lost_the_answer_gets_it_without_asking_tune(sweep: SimulatedSweep) -> None:
    async def dies_with_the_answer(sweep: SimulatedSweep, work: Any) -> None:
        await sweep.coordinator.rung(work.trial_id, work.attempt, rung(1))
        raise ProcessLookupError

    sweep.trainings = {"0000": [dies_with_the_answer, with_rungs(1, 3)]}
    assert [(await sweep.run("0000")).values["step"] for _ in range(2)] == [1, 3]
    assert (await sweep.run("0000")).state == "finished"


@simulated()
async def test_group_that_starts_again_at_a_rung_waits_for_the_same_answer(sweep: SimulatedSweep) -> None:
    asked = []

    async def dies_at_it(sweep: SimulatedSweep, work: Any) -> None:
        asked.append(asyncio.create_task(sweep.coordinator.rung(work.trial_id, work.attempt, rung(1))))
        await sweep.settle()
        raise ProcessLookupError

    sweep.trainings = {"0000": [dies_at_it, with_rungs(1)]}
    assert (await sweep.run("0000")).values["step"] == 1
    await sweep.until(lambda: len(sweep.taken) == 2)
    await sweep.settle()
    assert (await sweep.run("0000")).state == "finished"
    assert not await asked[0]  # nobody hears it
    assert len(sweep.history().rungs) == 1


@simulated()
async def test_only_the_newest_call_of_tune_gets_the_news(sweep: SimulatedSweep) -> None:
    """Tune starts its part of a trial again when it loses it; the one that is gone must not take the news."""
    sweep.trainings = {"0000": [with_rungs(1)]}
    *earlier, newest = await asyncio.gather(*(sweep.run("0000", visit=visit) for visit in "abc"))
    assert [report.state for report in earlier] == ["pending", "pending"]
    assert newest.values["step"] == 1
    assert (await sweep.run("0000", visit="c")).state == "finished"
    assert len(sweep.taken) == 1


@simulated()
async def test_trial_that_is_paused_waits_for_a_slot_or_runs_is_pruned(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [with_rungs(1, 3)], "0001": [until_stopped]}
    await sweep.run("0000")
    await sweep.coordinator.leave("0000")
    running, waiting = await sweep.begin("0001"), await sweep.begin("0002", "pending")
    assert await sweep.states() == {"0000": "paused", "0001": "running", "0002": "pending"}
    for id in ("0000", "0002", "0001"):
        await sweep.coordinator.prune(id, "why")
        assert (await sweep.trial(id)).state == "pruned" or id == "0001"
    assert [(await call).state for call in (waiting, running)] == ["pruned"] * 2
    assert [taken.trial for taken in sweep.taken] == ["0000", "0001"]


@simulated()
async def test_nothing_changes_a_trial_that_has_ended(sweep: SimulatedSweep) -> None:
    coordinator = sweep.coordinator
    await sweep.run("0000")
    for _ in range(2):
        await coordinator.prune("0000", "too late")
        await coordinator.give_up("0000", "too late")
        await coordinator.skip(PlannedTrial("0000", {}), "too late")
        await asyncio.gather(coordinator.leave("0000"), coordinator.leave("0000"))
        assert (await sweep.run("0000")).values["samples"] == 100
        await sweep.until_records_are_closed()  # after which little is known of it
    await sweep.close()
    assert sweep.history().trials["0000"].state == "finished"


@simulated()
async def test_trial_leaves_and_comes_back_with_other_values(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [with_rungs(5, 6), with_rungs(3, 4)]}
    await sweep.run("0000")
    assert (await sweep.run("0000")).values["step"] == 6
    await asyncio.gather(sweep.coordinator.leave("0000"), sweep.coordinator.leave("0000"))
    assert (await sweep.run("0001")).state == "finished"
    # from the checkpoint of another trial, which was less far
    assert [(await sweep.run("0000", **{"optimizer.lr": 0.7})).values["step"] for _ in range(2)] == [3, 4]
    trial = await sweep.trial("0000")
    assert (trial.params, trial.attempts) == ({"optimizer.lr": 0.7}, 2)
    assert (await sweep.run("0000", **{"optimizer.lr": 0.7})).state == "finished"
    assert "optimizer.lr: 0.1 -> 0.7 at step 6" in (sweep.tracking() / JOURNAL_FILE).read_text()


@simulated()
async def test_trial_comes_back_before_it_has_left(sweep: SimulatedSweep) -> None:
    """Tune keeps the trainable of a paused trial, and may resume the trial in another one."""
    sweep.trainings = {"0000": [with_rungs(1, 2), with_rungs(2)]}
    await sweep.run("0000", visit="a")
    assert (await sweep.run("0000", visit="b", **{"optimizer.lr": 0.7})).values["step"] == 2
    await sweep.coordinator.leave("0000", "a")
    assert (await sweep.run("0000", visit="b", **{"optimizer.lr": 0.7})).state == "finished"
    assert [taken.attempt for taken in sweep.taken] == [1, 2]


def test_rung_that_an_interruption_left_open_is_asked_again(new_sweep: Any) -> None:
    answers = []

    async def waits(sweep: SimulatedSweep, work: Any) -> None:
        answers.append(await sweep.coordinator.rung(work.trial_id, work.attempt, rung(1)))
        await sweep.coordinator.finish(work.trial_id, work.attempt, ending("stopped"))

    first = new_sweep()
    first.trainings = {"0000": [waits]}

    async def interrupted() -> None:
        await first.run("0000")
        await first.coordinator.end_early("interrupted")
        await first.until_state("0000", "pending")

    play(first, interrupted)
    assert (answers, first.history().decided) == ([None], [])
    second = new_sweep()
    second.trainings = {"0000": [waits]}

    async def resumed() -> None:
        assert (await second.run("0000")).values["step"] == 1
        await second.coordinator.prune("0000", "asha ended it")
        await second.until_state("0000", "pruned")

    play(second, resumed)
    assert answers == [None, False]
    assert len(second.history().decided) == 1
