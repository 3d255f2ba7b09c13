"""The coordinator dies in the middle of a sweep: groups and Tune ask again, and nothing that they do begins again."""

import asyncio
from typing import Any

import pytest

from paceline.sweeps.messages import Attempt
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.recorded_run import read_points
from support.sweeps.simulation import ONE, SimulatedSweep, ending, full_disk, play, rung, simulated


def told(work: Attempt) -> tuple[str, int]:
    return work.trial_id, work.attempt


async def incarnation_of(sweep: SimulatedSweep, slot: int = 0) -> tuple[int, int, int]:
    """Slot, generation and incarnation of the group that the coordinator has there."""
    there = sweep.coordinator._scheduler.slots[slot]
    return slot, there.generation, there.incarnation


@simulated(groups=False)
async def test_trial_at_work_is_adopted_with_its_attempt(sweep: SimulatedSweep) -> None:
    _, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.metrics(*told(work), [MetricReading(1, 1, {"val/accuracy": 0.1})])
    groups, before = (await sweep.view()).groups, await sweep.trial("0000")
    await sweep.restart_coordinator()
    view = await sweep.view()
    assert view.groups == groups  # the driver starts none
    assert (view.busy, await sweep.states()) == (1, {"0000": "running"})
    assert [(details["code"], details["trials"]) for _, details in view.events] == [("coordinator-restarted", 1)]
    # what had arrived, and what was not answered, comes again; it is recorded once
    readings = [MetricReading(step, step, {"val/accuracy": 0.1 * step}) for step in (1, 2)]
    assert await sweep.coordinator.metrics(*told(work), readings)
    assert await sweep.coordinator.progress(*told(work), 2, 5.0) is False
    assert await sweep.coordinator.may_commit(*told(work))
    call = asyncio.ensure_future(sweep.run("0000"))
    await sweep.coordinator.finish(*told(work), ending())
    assert (await call).state == "finished"
    trial = await sweep.trial("0000")
    assert (trial.state, trial.attempts) == ("finished", 1)
    assert trial.seconds > before.seconds
    await sweep.close()
    assert [point.step for point in read_points(sweep.tracking(), ["val/accuracy"])] == [1, 2]


@simulated(groups=False)
async def test_end_that_was_not_answered_counts_once_and_the_group_gets_the_next_trial(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.finish(*told(work), ending())
    await call
    group = await incarnation_of(sweep)
    await sweep.restart_coordinator()
    await sweep.coordinator.finish(*told(work), ending("failed"))
    assert (await sweep.run("0000")).state == "finished"
    assert await sweep.states() == {"0000": "finished"}
    taking = asyncio.ensure_future(sweep.coordinator.take(*group))
    call = asyncio.ensure_future(sweep.run("0001"))
    taken = await taking
    assert taken is not None
    assert (taken.trial_id, taken.attempt, taken.number) == ("0001", 1, work.number + 1)
    await sweep.coordinator.finish(*told(taken), ending())
    assert (await call).state == "finished"


@simulated(groups=False)
async def test_group_that_did_not_get_its_trial_gets_it_in_the_same_attempt(sweep: SimulatedSweep) -> None:
    _, work = await sweep.begin_at_work("0000")
    group = await incarnation_of(sweep)
    await sweep.restart_coordinator()
    taking = asyncio.ensure_future(sweep.coordinator.take(*group))
    await sweep.settle()
    assert not taking.done()  # what is to be trained comes with Tune's call
    call = asyncio.ensure_future(sweep.run("0000"))
    assert await taking == work
    await sweep.coordinator.finish(*told(work), ending())
    await call
    assert (await sweep.trial("0000")).attempts == 1


@pytest.mark.parametrize("tune_knows", [True, False])
@simulated(groups=False)
async def test_rung_is_reported_once_and_decided_once(sweep: SimulatedSweep, tune_knows: bool) -> None:
    call, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.event(*told(work), "checkpoint", {"step": 4, "path": "step-4"})
    unanswered = asyncio.ensure_future(sweep.coordinator.rung(*told(work), rung(4)))
    assert (await call).values["step"] == 4
    await sweep.restart_coordinator()
    assert not unanswered.done()
    waiting = asyncio.ensure_future(sweep.coordinator.rung(*told(work), rung(4)))
    if not tune_knows:  # its call was not answered
        report = await sweep.run("0000")
        assert (report.state, report.values["step"], report.checkpoint) == ("running", 4, "step-4")
    call = asyncio.ensure_future(sweep.run("0000", reported_step=4))
    assert await waiting is True
    await sweep.coordinator.finish(*told(work), ending())
    assert (await call).state == "finished"
    assert [values["step"] for _, values in sweep.history().rungs] == [4]
    assert len(sweep.history().decided) == 1


@simulated(groups=False)
async def test_answer_at_a_rung_that_was_lost_is_given_again(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    waiting = asyncio.ensure_future(sweep.coordinator.rung(*told(work), rung(4)))
    await call
    unanswered = asyncio.ensure_future(sweep.run("0000", reported_step=4))
    assert await waiting
    await sweep.restart_coordinator()
    assert not unanswered.done()
    assert await sweep.coordinator.rung(*told(work), rung(4)) is True
    assert (await sweep.view()).busy == 1


@simulated(groups=False)
async def test_trial_that_was_pruned_ends_as_pruned(sweep: SimulatedSweep) -> None:
    _, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.prune("0000", "asha ended it")
    await sweep.restart_coordinator()
    assert await sweep.coordinator.progress(*told(work), 3, 5.0) is True
    await sweep.coordinator.finish(*told(work), ending("stopped"))
    trial = await sweep.trial("0000")
    assert (trial.state, trial.reason) == ("pruned", "asha ended it")


@simulated(groups=False)
async def test_trial_that_tune_has_left_frees_its_slot(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    unanswered = asyncio.ensure_future(sweep.coordinator.rung(*told(work), rung(4)))
    await call
    await sweep.restart_coordinator()
    assert not unanswered.done()
    waiting = asyncio.ensure_future(sweep.coordinator.rung(*told(work), rung(4)))
    leaving = asyncio.ensure_future(sweep.coordinator.leave("0000", "any"))
    assert await waiting is None
    await sweep.coordinator.finish(*told(work), ending("stopped"))
    await leaving
    assert await sweep.states() == {"0000": "paused"}


@simulated(groups=False)
async def test_sweep_that_is_to_end_still_does(sweep: SimulatedSweep) -> None:
    _, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.end_early("interrupted")
    await sweep.restart_coordinator()
    assert (await sweep.view()).over == "interrupted"
    assert await sweep.coordinator.progress(*told(work), 1, 5.0) is True
    assert (await sweep.run("0001")).state == "pending"
    await sweep.coordinator.finish(*told(work), ending("stopped"))
    assert (await sweep.trial("0000")).state == "pending"


@simulated(groups=False)
async def test_group_that_died_meanwhile_begins_another_attempt(sweep: SimulatedSweep) -> None:
    _, work = await sweep.begin_at_work("0000")
    await sweep.restart_coordinator()
    call = asyncio.ensure_future(sweep.run("0000"))
    again = await sweep.taken_by_a_group()
    assert (again.trial_id, again.attempt) == ("0000", 2)
    assert await sweep.coordinator.may_commit(*told(work)) is False
    await sweep.coordinator.finish(*told(again), ending())
    assert (await call).state == "finished"


@simulated(groups=False, slots=2)
async def test_prepared_groups_their_workers_and_costs_are_remembered(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE])
    await sweep.begin("0000")
    await sweep.coordinator.group_started(0, 1, 2.0)
    work = await sweep.taken_by_a_group()
    groups, workers = (await sweep.view()).groups, await sweep.coordinator.workers()
    assert len(workers) == 1
    await asyncio.sleep(0.01)
    before = await sweep.coordinator.spent()
    await sweep.restart_coordinator()
    await sweep.coordinator.prepare([ONE])  # not answered, so that they come again
    await sweep.coordinator.group_started(0, 1, 2.0)
    assert (await sweep.view()).groups == groups
    assert await sweep.coordinator.workers() == workers
    after = await sweep.coordinator.spent()
    assert after.trials[work.trial_id] >= before.trials[work.trial_id] > 0.01
    assert after.parts["startup"] == before.parts["startup"]


@simulated(groups=False)
async def test_watcher_sees_all_trials_and_the_events_since(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    await sweep.coordinator.finish(*told(work), ending("failed"))
    await call
    cursor = (await sweep.view()).cursor
    await sweep.restart_coordinator()
    await sweep.coordinator.give_up("0005", "Tune lost it")
    view = await sweep.view(cursor)
    assert [trial.id for trial in view.trials] == ["0000"]
    assert [details["code"] for kind, details in view.events if kind == "warning"] == [
        "coordinator-restarted",
        "trial-not-begun",
    ]
    assert (await sweep.view(view.cursor)).trials == []


def test_coordinator_of_a_later_launch_adopts_nothing(new_sweep: Any) -> None:
    first = new_sweep()
    works: list[Attempt] = []

    async def begins() -> None:
        _, work = await first.begin_at_work("0000")
        works.append(work)
        await first.settle()
        first._is_closed = True

    play(first, begins, groups=False)
    second = new_sweep()

    async def looks() -> None:
        view = await second.view()
        assert (view.busy, await second.states()) == (0, {"0000": "pending"})
        assert [group.shape for group in view.groups] == [None]
        assert await second.coordinator.may_commit(*told(works[0])) is False

    play(second, looks, groups=False)


@simulated(groups=False)
async def test_state_that_a_full_disk_did_not_take_is_written_later(sweep: SimulatedSweep) -> None:
    with full_disk("log.jsonl"):
        _, work = await sweep.begin_at_work("0000")
        for step in range(3):
            await sweep.coordinator.group_failed(0, 99, f"not the group that is there {step}")
            await sweep.view()
    assert sum("the state of the slots" in event["message"] for event in await sweep.events("warning")) == 1
    await sweep.coordinator.prune("0000", "asha ended it")  # there is room again
    await sweep.restart_coordinator()
    assert await sweep.coordinator.progress(*told(work), 3, 5.0) is True
    assert await sweep.coordinator.workers() == []  # those came while nothing could be written


@simulated(groups=False)
async def test_entries_of_a_coordinator_that_outlived_its_driver_are_passed_over(sweep: SimulatedSweep) -> None:
    later = SimulatedSweep(sweep.folder)
    await later.begin("0001")
    await sweep.begin("0000")  # the earlier launch writes to the log although the later one has begun
    await sweep.settle()
    await later.restart_coordinator()
    assert {id for id, state in (await later.states()).items() if state == "running"} == {"0001"}
    run = later.coordinator._scheduler.slots[0].run
    assert run is not None
    assert run.trial.id == "0001"
    await later.close()
