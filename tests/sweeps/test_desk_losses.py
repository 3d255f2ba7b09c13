"""A sweep's desk: groups that die, do not start, or give no sign of life, and the seats and trials they leave."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline.sweeps.desk import watchdog
from paceline.sweeps.log import read_log
from sweeps.desk_players import ONE, TWO, Floor, finishes, played, rung


async def begins(sweep: Floor, id: str, seat: int = 0) -> tuple[asyncio.Task[Any], Any]:
    """A trial that a group is at work on, and what the group took."""
    call = asyncio.create_task(sweep.run(id))
    await sweep.until_state(id, "running")
    return call, await sweep.taken_by_a_group(seat)


def test_a_trial_outlives_the_group_that_gave_up(floor: Callable[..., Floor]) -> None:
    sweep = floor(max_failures=1)

    async def scene() -> None:
        call, work = await begins(sweep, "0000")
        await sweep.desk.group_failed(0, 1, "a node is gone")
        assert not await sweep.desk.may_commit("0000", work.attempt)
        assert (await sweep.events("restarted"))[0]["failures"] == 1
        await sweep.taken_by_a_group()
        await sweep.desk.group_failed(0, 2, "a node is gone")
        assert (await call).state == "failed"
        trial = await sweep.trial("0000")
        assert (trial.reason, trial.attempts) == ("a node is gone", 2)
        assert (await sweep.desk.view(0)).fault == ""

    played(sweep, scene, groups=False)


def test_a_group_that_starts_again_and_again_without_a_trial_is_given_up(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        call = asyncio.create_task(sweep.run("0000"))
        await sweep.until_state("0000", "running")
        entered = 0
        while not (view := await sweep.desk.view(0)).fault:
            entered += await sweep.desk.enter(0, view.groups[0].generation, 0, b"worker") is not None
            assert entered < 100
        assert entered == 9  # three groups, each of which was started three times
        assert "before it began a trial" in view.fault
        assert (await call).state == "pending"

    played(sweep, scene, groups=False)


def test_starts_between_trials_are_forgotten_with_the_next_trial(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        for id in ("0000", "0001", "0002", "0003", "0004"):
            call = asyncio.create_task(sweep.run(id))
            await sweep.until_state(id, "running")
            await sweep.serve_once()  # enters anew
            await call
        assert (await sweep.desk.view(0)).groups[0].generation == 1

    played(sweep, scene, groups=False)


def test_a_seat_without_a_group_costs_no_healthy_sweep(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        first, work = await begins(sweep, "0000")
        second = asyncio.create_task(sweep.run("0001"))
        await sweep.until_state("0001", "running")
        await sweep.desk.group_failed(1, 1, "no room")
        view = await sweep.desk.view(0)
        assert (view.fault, view.over, view.groups[1].shape) == ("", "", None)
        assert {trial.id: trial.state for trial in view.trials} == {"0000": "running", "0001": "pending"}
        assert any("no room" in told["message"] for told in await sweep.events("warning"))
        await finishes(sweep, work)
        assert (await first).state == "finished"
        await sweep.until_state("0001", "running")
        await sweep.serve_once()
        assert (await second).state == "finished"
        third = asyncio.create_task(sweep.run("0002"))
        await sweep.until_state("0002", "running")
        assert (await sweep.desk.view(0)).groups[1].shape is None
        await sweep.serve_once()
        await third

    played(sweep, scene, groups=False)


def test_a_trial_that_no_group_can_be_started_for_costs_one_seat_at_the_most(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=3)

    async def scene() -> None:
        first, work = await begins(sweep, "0000")
        call = asyncio.create_task(sweep.run("0001", TWO))
        await sweep.until_state("0001", "running")
        await sweep.desk.group_failed(1, 1, "no room")
        await sweep.until_state("0001", "running")
        await sweep.desk.group_failed(2, 1, "no room")
        assert (await call).state == "failed"
        second = asyncio.create_task(sweep.run("0002"))
        await sweep.until_state("0002", "running")
        groups = (await sweep.desk.view(0)).groups
        assert [group.shape for group in groups] == [ONE, None, ONE]
        await finishes(sweep, await sweep.taken_by_a_group(2))
        await second
        await finishes(sweep, work)
        await first

    played(sweep, scene, groups=False)


def test_a_trial_whose_second_group_was_at_work_before_is_not_blamed(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        first, work = await begins(sweep, "0000")
        second = asyncio.create_task(sweep.run("0001"))
        await sweep.until_state("0001", "running")
        await sweep.desk.group_failed(1, 1, "no room")
        await finishes(sweep, work)
        await first
        await sweep.until_state("0001", "running")
        await sweep.desk.group_failed(0, 1, "a node is gone")  # before it took the trial
        await sweep.serve_once()
        assert (await second).state == "finished"

    played(sweep, scene, groups=False)


def test_a_trial_keeps_its_rung_when_its_seat_is_lost(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        await begins(sweep, "0000")
        call, work = await begins(sweep, "0001", seat=1)
        asyncio.get_running_loop().create_task(sweep.desk.rung("0001", work.attempt, rung(1)))
        assert (await call).values["step"] == 1
        await sweep.desk.group_failed(1, 1, "a node is gone")
        await sweep.desk.group_failed(1, 2, "no room")
        goes_on = asyncio.create_task(sweep.run("0001"))  # Tune's answer
        await asyncio.sleep(0.01)
        await sweep.desk.give_up("0000", "no more")
        await sweep.until_state("0001", "running")
        again = await sweep.taken_by_a_group()
        assert again.trial_id == "0001"
        assert await asyncio.wait_for(sweep.desk.rung("0001", again.attempt, rung(1)), 5) is True
        await finishes(sweep, again)
        assert (await goes_on).state == "finished"

    played(sweep, scene, groups=False)
    history = read_log(sweep.folder)
    assert [id for id, _ in history.decided] == ["0001"]


def test_the_last_seat_is_tried_again_before_it_is_a_fault(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        await sweep.desk.prepare([ONE, ONE])
        await begins(sweep, "0000")
        await sweep.desk.group_failed(1, 1, "no room")
        for generation in (1, 2, 3, 4):
            assert (await sweep.desk.view(0)).fault == ""
            await sweep.desk.group_failed(0, generation, f"gone {generation}")
        assert (await sweep.desk.view(0)).fault == "gone 4"

    played(sweep, scene, groups=False)


def test_a_trial_that_a_dead_group_took_has_not_failed(floor: Callable[..., Floor]) -> None:
    sweep = floor(max_failures=0)

    async def scene() -> None:
        await sweep.desk.prepare([ONE])
        await sweep.desk.enter(0, 1, 0, b"first")
        idle = asyncio.create_task(sweep.desk.take(0, 1, 1))  # its caller dies
        call = asyncio.create_task(sweep.run("0000"))
        assert await idle is not None
        await sweep.serve_once()
        assert (await call).state == "finished"
        assert await sweep.events("restarted") == []

    played(sweep, scene, groups=False)


def test_how_many_seats_are_at_work(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        assert (await sweep.desk.view(0)).busy == 0
        call, work = await begins(sweep, "0000")
        waiting = asyncio.create_task(sweep.run("0001"))
        await sweep.until_state("0001", "running")
        assert (await sweep.desk.view(0)).busy == 1
        await finishes(sweep, work)
        await call
        assert (await sweep.desk.view(0)).busy == 0
        await sweep.desk.request_stop()
        await waiting

    played(sweep, scene, groups=False)


def test_the_workers_of_earlier_groups_are_known_until_they_have_ended(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        await begins(sweep, "0000")
        await sweep.desk.group_failed(0, 1, "gone")
        await sweep.taken_by_a_group()
        assert await sweep.desk.workers() == [b"0-1", b"0-2"]
        assert await sweep.desk.workers_of(0, 1) == [b"0-1"]
        await sweep.desk.group_ended(0, 1)
        assert await sweep.desk.workers() == [b"0-2"]
        assert await sweep.desk.workers_of(0, 1) == []

    played(sweep, scene, groups=False)


def test_tune_gives_a_trial_up(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        call, work = await begins(sweep, "0000")
        waiting = asyncio.create_task(sweep.run("0001"))
        await sweep.until_state("0001", "pending")
        await sweep.desk.give_up("0001", "its part of the sweep died")
        assert (await waiting).state == "failed"
        await sweep.desk.give_up("0000", "its part of the sweep died")
        assert (await call).state == "failed"
        assert await sweep.desk.progress("0000", work.attempt, 1, 1.0)  # it is to stop
        await sweep.desk.give_up("0000", "again")
        await sweep.desk.give_up("0009", "nobody knows it")
        assert any("0009" in told["message"] for told in await sweep.events("warning"))
        third = asyncio.create_task(sweep.run("0002"))
        await sweep.until_state("0002", "running")
        await sweep.desk.request_stop()
        await third

    played(sweep, scene, groups=False)
    trials = read_log(sweep.folder).trials
    assert trials["0000"].reason == trials["0001"].reason == "its part of the sweep died"
    assert "0009" not in trials


@pytest.mark.parametrize("is_told_to_stop", [True, False])
def test_workers_that_give_no_sign_of_life(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch, is_told_to_stop: bool
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "SAVE_SECONDS" if is_told_to_stop else "OVERDUE_SECONDS", 0.1)
    sweep = floor(trial_seconds=None if is_told_to_stop else 0.05)

    async def scene() -> None:
        await sweep.desk.prepare([ONE])
        call, _ = await begins(sweep, "0000")
        if is_told_to_stop:
            await sweep.desk.prune("0000", "why")
        assert (await asyncio.wait_for(call, 5)).state == "pruned"
        assert "did not" in (await sweep.trial("0000")).reason
        assert (await sweep.desk.view(0)).groups[0].generation == 2

    played(sweep, scene, groups=False)


def test_a_trial_at_a_rung_hears_that_its_time_is_up(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)
    sweep = floor(trial_seconds=0.05)

    async def scene() -> None:
        await sweep.desk.prepare([ONE])
        call, work = await begins(sweep, "0000")
        answer = asyncio.create_task(sweep.desk.rung("0000", work.attempt, rung(1)))
        assert (await call).state == "running"
        assert await asyncio.wait_for(answer, 5) is False

    played(sweep, scene, groups=False)
