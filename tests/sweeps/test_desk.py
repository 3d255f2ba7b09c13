"""A sweep's desk: trials and seats, groups that start again or fail, and how trials end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.log import read_log
from paceline.sweeps.trials import Point
from paceline.tracking.points import Reading
from sweeps.desk_players import (
    ONE,
    TWO,
    Floor,
    dies,
    ending,
    finishes,
    played,
    rung,
    states,
    until_stopped,
    with_rungs,
)


def test_two_trials_in_one_seat_take_turns_in_one_group(floor: Callable[..., Floor]) -> None:
    sweep = floor(points=2)

    async def scene() -> None:
        reports = await asyncio.gather(sweep.run("0000"), sweep.run("0001"))
        assert [report.state for report in reports] == ["finished", "finished"]
        assert reports[0].is_over
        assert reports[0].values["val/accuracy"] == 0.5
        assert reports[0].values["samples"] == 100
        await sweep.until(lambda: not sweep.alive)  # nobody is left to come

    played(sweep, scene)
    assert sweep.taken == [(0, 1, "0000", 1), (0, 1, "0001", 1)]
    assert sweep.groups == [(0, ONE)]


def test_what_is_known_of_a_trial_that_has_finished(floor: Callable[..., Floor], tmp_path: Path) -> None:
    sweep = floor()

    async def scene() -> None:
        await sweep.run("0000", **{"optimizer.lr": 0.3})

    played(sweep, scene)
    trial = read_log(tmp_path / "sweep").trials["0000"]
    assert (trial.state, trial.reason, trial.weights_sha256) == ("finished", "", "ab")
    assert trial.overrides == {"optimizer.lr": 0.3}
    assert (trial.steps, trial.total_steps, trial.samples, trial.attempts) == (10, 10, 100, 1)
    assert trial.metrics == {"val/accuracy": 0.5}
    assert 0 < trial.seconds < 5


def test_two_seats_run_trials_side_by_side(floor: Callable[..., Floor]) -> None:
    sweep = floor(points=2, seats=2)
    together = asyncio.Barrier(2)

    async def meets(floor: Floor, work: Any) -> None:
        await together.wait()
        await finishes(floor, work)

    sweep.trainings = {"0000": [meets], "0001": [meets]}

    async def scene() -> None:
        await asyncio.gather(sweep.run("0000"), sweep.run("0001"))

    played(sweep, scene)
    assert sorted(seat for seat, *_ in sweep.taken) == [0, 1]


def test_a_trial_of_another_shape_gets_another_group(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        for id, shape in [("0000", ONE), ("0001", ONE), ("0002", TWO), ("0003", TWO), ("0004", ONE)]:
            await sweep.run(id, shape)

    played(sweep, scene)
    assert sweep.groups == [(0, ONE), (0, TWO), (0, ONE)]
    generations = [generation for _, generation, *_ in sweep.taken]
    assert generations == [1, 1, 2, 2, 3]


def test_a_trial_takes_the_free_seat_whose_group_suits(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)

    async def scene() -> None:
        await sweep.desk.prepare([ONE, TWO])
        await sweep.run("0000", TWO)
        await sweep.run("0001", ONE)

    played(sweep, scene)
    assert sorted(sweep.groups) == [(0, ONE), (1, TWO)]


def test_a_trial_that_needs_fresh_processes_never_gets_a_used_group(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        await sweep.desk.prepare([ONE])
        for id, fresh in [("0000", True), ("0001", False), ("0002", False), ("0003", True), ("0004", False)]:
            await sweep.run(id, fresh=fresh)

    played(sweep, scene)
    generations = [generation for _, generation, *_ in sweep.taken]
    # the prepared one was not used; nobody gets one after 0000 or 0003
    assert [generation - generations[0] for generation in generations] == [0, 2, 2, 3, 5]


def test_isolation_gives_each_trial_a_group(floor: Callable[..., Floor]) -> None:
    sweep = floor(fresh_processes=True)

    async def scene() -> None:
        for id in ("0000", "0001", "0002"):
            await sweep.run(id)

    played(sweep, scene)
    assert len(sweep.groups) == 3


def test_a_group_that_starts_again_gets_the_same_trial(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [dies, dies]}

    async def scene() -> None:
        assert (await sweep.run("0000")).state == "finished"
        assert [details["failures"] for details in await sweep.events("restarted")] == [1, 2]

    played(sweep, scene)
    assert [(id, attempt) for *_, id, attempt in sweep.taken] == [("0000", 1), ("0000", 2), ("0000", 3)]


@pytest.mark.parametrize(("allowed", "times"), [(0, "once"), (1, "2 times")])
def test_a_trial_that_keeps_losing_its_workers_fails(floor: Callable[..., Floor], allowed: int, times: str) -> None:
    sweep = floor(max_failures=allowed)
    sweep.trainings = {"0000": [dies] * 5}

    async def scene() -> None:
        reports = await asyncio.gather(sweep.run("0000"), sweep.run("0001"))
        assert [report.state for report in reports] == ["failed", "finished"]
        trial = await sweep.trial("0000")
        assert (trial.reason, trial.attempts) == (f"its workers died {times}", allowed + 1)

    played(sweep, scene)
    assert sweep.groups == [(0, ONE)]


def test_a_group_that_loses_its_workers_between_trials_counts_for_no_trial(floor: Callable[..., Floor]) -> None:
    sweep = floor(max_failures=0)

    async def dies_later(floor: Floor, work: Any) -> None:
        await finishes(floor, work)
        raise ProcessLookupError

    sweep.trainings = {"0000": [dies_later]}

    async def scene() -> None:
        for id in ("0000", "0001"):
            assert (await sweep.run(id)).state == "finished"

    played(sweep, scene)


def test_what_an_earlier_attempt_says_changes_nothing(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [dies, until_stopped]}

    async def scene() -> None:
        report = asyncio.create_task(sweep.run("0000"))
        await sweep.until(lambda: len(sweep.taken) == 2)
        desk = sweep.desk
        await desk.begin("0000", 1, "cpu")
        assert await desk.metrics("0000", 1, [Reading(9, 1, {"val/accuracy": 0.99})])
        assert await desk.progress("0000", 1, 9, 1.0)  # it is to stop
        assert not await desk.rung("0000", 1, rung(9))
        assert not await desk.may_commit("0000", 1)
        assert await desk.may_commit("0000", 2)
        await desk.event("0000", 1, "checkpoint", {"path": "late"})
        await desk.finish("0000", 1, ending("failed"))
        trial = await sweep.trial("0000")
        assert (trial.state, trial.metrics, trial.checkpoint) == ("running", {}, "")
        await desk.request_stop()
        assert (await report).state == "pending"

    played(sweep, scene)


def test_a_group_of_an_earlier_generation_leaves(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        await sweep.run("0000")
        idle = asyncio.create_task(sweep.desk.take(0, 1, 1))
        await sweep.run("0001", TWO)
        assert await asyncio.wait_for(idle, 5) is None
        assert await sweep.desk.enter(0, 1, 0, b"") is None
        await sweep.desk.group_failed(0, 1, "too late")
        assert (await sweep.run("0002", TWO)).state == "finished"

    played(sweep, scene)
    assert sweep.groups == [(0, ONE), (0, TWO)]


def test_groups_that_fail_three_times_in_a_row_are_a_fault(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        call = asyncio.create_task(sweep.run("0000"))
        await sweep.until_state("0000", "running")
        for failure in range(3):
            assert (await sweep.desk.view(0)).fault == ""
            generation = (await sweep.desk.view(0)).groups[0].generation
            await sweep.desk.group_failed(0, generation, f"no room {failure}")
            await sweep.desk.group_failed(0, generation, "the same again")
        view = await sweep.desk.view(0)
        assert view.fault == "no room 2"
        assert (await call).state == "pending"
        assert view.groups[0].shape is None

    played(sweep, scene, groups=False)
    assert read_log(sweep.folder).trials["0000"].attempts == 0


def test_a_trial_that_has_not_begun_waits_for_the_next_group(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        for id in ("0000", "0001", "0002", "0003"):  # a group that comes lets the failures before be forgotten
            call = asyncio.create_task(sweep.run(id))
            await sweep.until_state(id, "running")
            generation = (await sweep.desk.view(0)).groups[0].generation
            await sweep.desk.group_failed(0, generation, "no room")
            await sweep.serve_once()
            assert (await call).state == "finished"
        assert (await sweep.desk.view(0)).fault == ""

    played(sweep, scene, groups=False)


def test_a_skipped_point(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0001": [with_rungs(1)]}

    async def scene() -> None:
        await sweep.desk.skip(Point("0000", {"optimizer.lr": -1}), "it is not above 0")
        assert (await sweep.run("0000")).state == "skipped"
        await sweep.run("0001")
        await sweep.desk.leave("0001")
        await sweep.desk.skip(Point("0001", {"optimizer.lr": -1}), "it is not above 0")

    played(sweep, scene)
    trials = read_log(sweep.folder).trials
    assert states(list(trials.values())) == {"0000": "skipped", "0001": "skipped"}
    assert trials["0000"].reason == "it is not above 0"


def test_a_failing_rank_has_the_first_word(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def one_rank_fails(floor: Floor, work: Any) -> None:
        await floor.desk.finish(work.trial_id, work.attempt, ending("failed", kind="oom"))
        await floor.until_state("0001", "running")  # the next one waits for the group
        await floor.desk.finish(work.trial_id, work.attempt, ending("finished"))
        raise ProcessLookupError

    sweep.trainings = {"0000": [one_rank_fails]}

    async def scene() -> None:
        first = await sweep.run("0000")
        assert first.state == "oom"
        assert (await sweep.run("0001")).state == "finished"
        assert (await sweep.trial("0001")).attempts == 1

    played(sweep, scene)


@pytest.mark.parametrize(("kind", "state"), [("error", "failed"), ("diverged", "diverged"), ("other", "failed")])
def test_a_failure(floor: Callable[..., Floor], kind: str, state: str) -> None:
    sweep = floor()

    async def fails(floor: Floor, work: Any) -> None:
        await floor.desk.metrics(work.trial_id, work.attempt, [Reading(1, 1, {"val/accuracy": 0.2})])
        await floor.desk.finish(work.trial_id, work.attempt, ending("failed", kind=kind))

    sweep.trainings = {"0000": [fails]}

    async def scene() -> None:
        report = await sweep.run("0000")
        assert (report.state, report.values["val/accuracy"]) == (state, 0.2)
        assert (await sweep.events("ended"))[0]["reason"] == "RuntimeError: no"

    played(sweep, scene)
