"""A sweep's coordinator: groups that die, do not start, or hang, and the slots and trials that they leave."""

import asyncio
from typing import Any

import pytest

from paceline.sweeps.coordinator import group_failures
from support.sweeps.simulation import ONE, TWO, SimulatedSweep, finishes, play, rung, simulated


@simulated(groups=False, max_failures=1)
async def test_trial_outlives_its_group_until_it_has_failed_too_often(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.group_failed(0, 1, "a node is gone")
    assert not await sweep.coordinator.may_commit("0000", work.attempt)
    assert (await sweep.events("restarted"))[0]["failures"] == 1
    await sweep.taken_by_a_group()
    await sweep.coordinator.group_failed(0, 2, "a node is gone")
    assert (await call).state == "failed"
    trial = await sweep.trial("0000")
    assert (trial.reason, trial.attempts) == ("a node is gone", 2)
    assert (await sweep.view()).fault == ""


@simulated(groups=False)
async def test_groups_that_fail_to_start_three_times_in_a_row_are_a_fault(sweep: SimulatedSweep) -> None:
    call = await sweep.begin("0000")
    for failure in range(3):
        view = await sweep.view()
        assert view.fault == ""
        for _ in range(2):  # the second time it is known
            await sweep.coordinator.group_failed(0, view.groups[0].generation, f"no room {failure}")
    view = await sweep.view()
    assert (view.fault, view.groups[0].shape) == ("no room 2", None)
    assert (await call).state == "pending"
    await sweep.close()
    assert sweep.history().trials["0000"].attempts == 0


@simulated(groups=False)
async def test_each_trial_that_begins_resets_the_counts_of_failures_and_restarts(sweep: SimulatedSweep) -> None:
    for number in range(9):
        call = await sweep.begin(f"{number:04d}")
        if number < 4:
            await sweep.coordinator.group_failed(0, (await sweep.view()).groups[0].generation, "no room")
        await sweep.serve_once()  # enters again
        assert (await call).state == "finished"
    view = await sweep.view()
    assert (view.fault, view.groups[0].generation) == ("", 5)


@simulated(groups=False)
async def test_group_that_restarts_again_and_again_without_a_trial_is_given_up(
    sweep: SimulatedSweep, golden: Any
) -> None:
    call = await sweep.begin("0000")
    entered = 0
    while not (view := await sweep.view()).fault:
        entered += await sweep.coordinator.enter(0, view.groups[0].generation, 0, b"worker") is not None
        assert entered < 100
    assert entered == 9  # three groups, each of which was started three times
    golden(view.fault)
    assert (await call).state == "pending"


@simulated(groups=False, slots=2)
async def test_slot_without_a_group_is_lost_and_the_sweep_continues(sweep: SimulatedSweep, golden: Any) -> None:
    first, work = await sweep.begin_at_work("0000")
    second = await sweep.begin("0001")
    await sweep.coordinator.group_failed(1, 1, "no room")
    view = await sweep.view()
    assert (view.fault, view.over, view.groups[1].shape) == ("", "", None)
    assert await sweep.states() == {"0000": "running", "0001": "pending"}
    [warning] = await sweep.events("warning")
    assert (warning["code"], warning["slots_left"]) == ("slot-lost", 1)
    golden(warning["message"])
    await finishes(sweep, work)
    assert (await first).state == "finished"
    await sweep.until_state("0001", "running")
    await sweep.serve_once()
    assert (await second).state == "finished"
    third = await sweep.begin("0002")
    assert (await sweep.view()).groups[1].shape is None
    await sweep.serve_once()
    await third


@simulated(groups=False, slots=3)
async def test_trial_that_no_group_can_be_started_for_costs_one_slot_at_most(sweep: SimulatedSweep) -> None:
    first, work = await sweep.begin_at_work("0000")
    call = await sweep.begin("0001", shape=TWO)
    for slot in (1, 2):
        await sweep.until_state("0001", "running")
        await sweep.coordinator.group_failed(slot, 1, "no room")
    assert (await call).state == "failed"
    second = await sweep.begin("0002")
    assert [group.shape for group in (await sweep.view()).groups] == [ONE, None, ONE]
    await finishes(sweep, await sweep.taken_by_a_group(2))
    await second
    await finishes(sweep, work)
    await first


@simulated(groups=False, slots=2)
async def test_trial_is_not_blamed_for_a_group_that_was_at_work_before(sweep: SimulatedSweep) -> None:
    first, work = await sweep.begin_at_work("0000")
    second = await sweep.begin("0001")
    await sweep.coordinator.group_failed(1, 1, "no room")
    await finishes(sweep, work)
    await first
    await sweep.until_state("0001", "running")
    await sweep.coordinator.group_failed(0, 1, "a node is gone")  # before it took the trial
    await sweep.serve_once()
    assert (await second).state == "finished"


@simulated(groups=False, slots=2)
async def test_trial_keeps_its_rung_when_its_slot_is_lost(sweep: SimulatedSweep) -> None:
    await sweep.begin_at_work("0000")
    call, work = await sweep.begin_at_work("0001", slot=1)
    lost = asyncio.create_task(sweep.coordinator.rung("0001", work.attempt, rung(1)))
    assert (await call).values["step"] == 1
    await sweep.coordinator.group_failed(1, 1, "a node is gone")
    await sweep.coordinator.group_failed(1, 2, "no room")
    goes_on = asyncio.create_task(sweep.run("0001"))  # Tune's answer
    await sweep.settle()
    await sweep.coordinator.give_up("0000", "no more")
    await sweep.until_state("0001", "running")
    again = await sweep.taken_by_a_group()
    assert again.trial_id == "0001"
    assert await sweep.coordinator.rung("0001", again.attempt, rung(1)) is True
    assert await lost is None
    await finishes(sweep, again)
    assert (await goes_on).state == "finished"
    assert [id for id, _ in sweep.history().decided] == ["0001"]


@simulated(groups=False, slots=2)
async def test_last_slot_is_tried_again_before_it_is_a_fault(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE, ONE])
    await sweep.begin_at_work("0000")
    await sweep.coordinator.group_failed(1, 1, "no room")
    for generation in (1, 2, 3, 4):
        assert (await sweep.view()).fault == ""
        await sweep.coordinator.group_failed(0, generation, f"gone {generation}")
    assert (await sweep.view()).fault == "gone 4"


@simulated(groups=False, max_failures=0)
async def test_trial_that_a_dead_group_took_has_not_failed(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE])
    first = await sweep.coordinator.enter(0, 1, 0, b"first")
    assert first is not None
    waiting = asyncio.create_task(sweep.coordinator.take(0, 1, first))
    await sweep.settle()
    second = await sweep.coordinator.enter(0, 1, 0, b"second")
    assert second == first + 1
    assert await asyncio.wait_for(waiting, 5) is None  # a process of an earlier start gets no trial
    idle = asyncio.create_task(sweep.coordinator.take(0, 1, second))  # its caller dies
    call = asyncio.create_task(sweep.run("0000"))
    assert await idle is not None
    await sweep.serve_once()
    assert (await call).state == "finished"
    assert await sweep.events("restarted") == []


@simulated(groups=False)
async def test_workers_of_earlier_groups_are_known_until_they_have_ended(sweep: SimulatedSweep) -> None:
    coordinator = sweep.coordinator
    await sweep.begin_at_work("0000")
    await coordinator.group_failed(0, 1, "gone")
    await sweep.taken_by_a_group()
    assert (await coordinator.workers(), await coordinator.workers_of(0, 1)) == ([b"0-1", b"0-2"], [b"0-1"])
    await coordinator.group_ended(0, 1)
    assert (await coordinator.workers(), await coordinator.workers_of(0, 1)) == ([b"0-2"], [])


@simulated(groups=False)
async def test_trial_that_tune_gives_up_has_failed(sweep: SimulatedSweep) -> None:
    coordinator = sweep.coordinator
    call, work = await sweep.begin_at_work("0000")
    waiting = await sweep.begin("0001", "pending")
    for id, asked in (("0001", waiting), ("0000", call)):
        await coordinator.give_up(id, "its part of the sweep died")
        assert (await asked).state == "failed"
    assert await coordinator.progress("0000", work.attempt, 1, 1.0)  # it is to stop
    await coordinator.give_up("0000", "again")
    await coordinator.give_up("0009", "nobody knows it")
    assert "trial-not-begun" in await sweep.warnings()
    third = await sweep.begin("0002")  # the slot is free
    await coordinator.end_early("interrupted")
    await third
    reasons = {trial.id: trial.reason for trial in (await coordinator.view()).trials if trial.state == "failed"}
    assert reasons == dict.fromkeys(("0000", "0001"), "its part of the sweep died")


@simulated(groups=False)
async def test_a_group_whose_trial_tune_gives_up_may_hang_and_gets_no_other_one(sweep: SimulatedSweep) -> None:
    await sweep.begin_at_work("0000")
    [before] = (await sweep.view()).groups
    await sweep.coordinator.give_up("0000", "its part of the sweep died")
    call = await sweep.begin("0001")
    [after] = (await sweep.view()).groups
    assert after.generation > before.generation
    await sweep.serve_once()
    assert (await call).state == "finished"


@pytest.mark.parametrize("has_to_stop", [True, False])
def test_workers_that_give_no_sign_of_life_lose_their_trial(
    new_sweep: Any, monkeypatch: pytest.MonkeyPatch, has_to_stop: bool
) -> None:
    monkeypatch.setattr(group_failures, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(group_failures, "SAVE_SECONDS" if has_to_stop else "OVERDUE_SECONDS", 0.1)
    sweep = new_sweep(trial_seconds=None if has_to_stop else 0.05)

    async def scene() -> None:
        await sweep.coordinator.prepare([ONE])
        call, _ = await sweep.begin_at_work("0000")
        if has_to_stop:
            await sweep.coordinator.prune("0000", "why")
        assert (await call).state == "pruned"
        assert (await sweep.view()).groups[0].generation == 2

    play(sweep, scene, groups=False)


@simulated(groups=False, trial_seconds=0.05)
async def test_trial_at_a_rung_hears_that_its_time_is_up(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_failures, "LOOK_SECONDS", 0.01)
    await sweep.coordinator.prepare([ONE])
    call, work = await sweep.begin_at_work("0000")
    answer = asyncio.create_task(sweep.coordinator.rung("0000", work.attempt, rung(1)))
    assert (await call).state == "running"
    assert await answer is False
