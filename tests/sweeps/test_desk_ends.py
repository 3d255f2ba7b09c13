"""A sweep's desk: stops, limits and targets, a later launch, and a disk that is full."""

import asyncio
import errno
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.sweeps.log import read_log
from paceline.sweeps.trials import Point
from paceline.sweeps.work import Work
from paceline.tracking.journal import Journal
from sweeps.desk_players import (
    ONE,
    Floor,
    ending,
    played,
    states,
    until_stopped,
    with_rungs,
)


def test_a_stop_ends_what_runs_and_lets_nothing_begin(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2)
    sweep.trainings = {"0000": [until_stopped], "0001": [with_rungs(1)], "0003": [with_rungs(1)]}

    async def scene() -> None:
        at_rung = await sweep.run("0001")
        assert at_rung.state == "running"
        calls = [asyncio.create_task(sweep.run(id)) for id in ("0000", "0002")]
        await sweep.until(lambda: len(sweep.taken) == 2)
        await sweep.until_state("0002", "pending")
        await sweep.desk.request_stop()
        reports = [*await asyncio.gather(*calls), await sweep.run("0001"), await sweep.run("0004")]
        assert [report.state for report in reports] == ["pending"] * 4
        assert all(report.is_over for report in reports)
        await sweep.until(lambda: not sweep.alive)
        view = await sweep.desk.view(0)
        assert view.over == "interrupted"
        assert states(view.trials) == {"0000": "pending", "0001": "pending", "0002": "pending"}
        assert [group.shape for group in view.groups] == [None, None]

    played(sweep, scene)
    assert sorted(id for *_, id, _ in sweep.taken) == ["0000", "0001"]


def test_a_stop_before_the_group_has_come(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def scene() -> None:
        call = asyncio.create_task(sweep.run("0000"))
        await sweep.until_state("0000", "running")
        leaving = asyncio.create_task(sweep.desk.leave("0000"))
        await sweep.desk.request_stop()
        assert (await call).state == "pending"
        await leaving
        assert await sweep.desk.enter(0, 1, 0, b"") is None

    played(sweep, scene, groups=False)


def test_the_wall_clock_ends_the_sweep(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [until_stopped]}

    async def scene() -> None:
        call = asyncio.create_task(sweep.run("0000"))
        await sweep.until(lambda: sweep.taken)
        await sweep.desk.end_early("stopped after 5 s")
        await call
        assert (await sweep.desk.view(0)).over == "stopped after 5 s"

    played(sweep, scene)
    trial = read_log(sweep.folder).trials["0000"]
    assert (trial.state, trial.reason) == ("pending", "stopped after 5 s")


def test_a_trial_that_takes_too_long(floor: Callable[..., Floor]) -> None:
    sweep = floor(trial_seconds=0.05)
    sweep.trainings = {"0000": [until_stopped]}

    async def scene() -> None:
        assert (await sweep.run("0000")).state == "pruned"
        assert "sweep.stop.trial_seconds" in (await sweep.trial("0000")).reason
        assert (await sweep.run("0001")).state == "finished"

    played(sweep, scene)


@pytest.mark.parametrize(("mode", "target", "is_over"), [("max", 0.5, True), ("max", 0.6, False), ("min", 0.5, True)])
def test_a_target(floor: Callable[..., Floor], mode: str, target: float, is_over: bool) -> None:
    sweep = floor(seats=2, target=target, objectives=(("val/accuracy", mode),))
    sweep.trainings = {"0000": [until_stopped], "0003": [with_rungs(1)]}

    async def scene() -> None:
        await sweep.run("0003")
        await sweep.desk.leave("0003")
        running = asyncio.create_task(sweep.run("0000"))
        await sweep.until(lambda: len(sweep.taken) == 2)
        waiting = [asyncio.create_task(sweep.run(id)) for id in ("0001", "0002")]
        assert (await waiting[0]).state == "finished"
        over = (await sweep.desk.view(0)).over
        assert bool(over) is is_over
        if is_over:
            assert (await running).state == "pruned"
            await sweep.until(lambda: not sweep.alive)
            assert states(await sweep.desk.trials())["0003"] == "pruned"
        else:
            assert (await waiting[1]).state == "finished"
            await sweep.desk.request_stop()
            await running

    played(sweep, scene)
    again = floor(target=target, objectives=(("val/accuracy", mode),))

    async def later() -> None:
        await again.desk.prepare([ONE])
        assert ((await again.run("0007")).state == "pending") is is_over

    played(again, later)


def test_a_metric_that_no_trial_reports_ends_the_sweep(floor: Callable[..., Floor]) -> None:
    sweep = floor(seats=2, objectives=(("val/acuracy", "max"),))
    sweep.trainings = {"0000": [until_stopped]}

    async def scene() -> None:
        running = asyncio.create_task(sweep.run("0000"))
        await sweep.until(lambda: sweep.taken)
        assert (await sweep.run("0001")).state == "finished"
        assert (await running).state == "pending"
        fault = "sweep.metric: no trial reports 'val/acuracy' (did you mean val/accuracy?)"
        assert (await sweep.desk.view(0)).fault == fault
        assert (await sweep.run("0002")).state == "pending"

    played(sweep, scene)


def test_a_metric_that_one_trial_lacks_ends_no_sweep(floor: Callable[..., Floor]) -> None:
    sweep = floor(objectives=(("val/accuracy", "max"), ("val/f1", "max"), ("seconds", "min")))

    async def reports_more(floor: Floor, work: Work) -> None:
        values = {"val/accuracy": 0.5, "val/f1": math.nan}
        await floor.desk.finish(work.trial_id, work.attempt, ending(metrics=values))

    sweep.trainings = {"0000": [reports_more]}

    async def scene() -> None:
        for id in ("0000", "0001", "0002"):
            assert (await sweep.run(id)).state == "finished"
        assert (await sweep.desk.view(0)).fault == ""

    played(sweep, scene)


def test_groups_that_nobody_needs_any_more_are_handed_back(floor: Callable[..., Floor]) -> None:
    sweep = floor(points=3, seats=2)
    sweep.trainings = {"0001": [until_stopped]}

    async def scene() -> None:
        await sweep.desk.prepare([ONE, ONE])
        last = asyncio.create_task(sweep.run("0001"))
        await sweep.run("0000")
        assert sum(group.shape is not None for group in (await sweep.desk.view(0)).groups) == 2
        await sweep.desk.skip(Point("0002", {"optimizer.lr": -1}), "it is not above 0")
        assert sum(group.shape is not None for group in (await sweep.desk.view(0)).groups) == 1
        await sweep.until(lambda: len(sweep.alive) == 1)
        await sweep.desk.request_stop()
        await last

    played(sweep, scene)


def test_a_desk_made_anew_knows_what_has_ended(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0001": [with_rungs(1)], "0002": [with_rungs(1, 3)]}

    async def scene() -> None:
        await sweep.run("0000")
        await sweep.run("0001")
        await sweep.desk.prune("0001", "why")
        await sweep.desk.leave("0001")
        await sweep.run("0002")
        await sweep.desk.request_stop()

    played(sweep, scene)
    again = floor()

    async def later() -> None:
        first, second = await again.run("0000"), await again.run("0001")
        assert (first.state, first.values["samples"], first.values["val/accuracy"]) == ("finished", 100, 0.5)
        assert (second.state, second.values["samples"], second.values["epochs"]) == ("pruned", 10, 0.1)
        assert (await again.run("0002")).state == "finished"
        assert (await again.trial("0002")).attempts == 2

    played(again, later)
    assert [id for *_, id, _ in again.taken] == ["0002"]


class FullDisk:
    """A disk on which some journals cannot grow while `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        self.is_full = True
        append = Journal.append

        def fails(journal: Journal, items: Any) -> None:
            if self.is_full and part in str(journal.path):
                raise OSError(errno.ENOSPC, "No space left on device")
            append(journal, items)

        monkeypatch.setattr(Journal, "append", fails)


@pytest.mark.parametrize("part", ["log.jsonl", "sweep/tracking/journal", "0000/tracking/journal", ""])
def test_a_full_disk_loses_no_trial(floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [with_rungs(1)]}
    order = sweep.order("0000")
    # what cannot be opened does not begin: the next test
    sweep.order = lambda id, *args, **kwargs: replace(order, point=Point(id, {"optimizer.lr": 0.1}))  # type: ignore[assignment, method-assign]

    async def scene() -> None:
        waits = asyncio.create_task(sweep.run("0000"))
        await sweep.until_state("0000", "running")
        disk = FullDisk(monkeypatch, part)
        assert (await waits).values["step"] == 1
        assert (await sweep.run("0000")).state == "finished"
        report = await sweep.close()
        assert "No space left" in str((await sweep.events("warning"), report["error"]))
        disk.is_full = False

    played(sweep, scene)


def test_a_trial_that_cannot_be_recorded_is_left_for_later(
    floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = floor()

    def fails(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scene() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("paceline.sweeps.desk.hall.TrialDesk", fails)
            assert (await sweep.run("0000")).state == "pending"
        assert any("No space left" in told["message"] for told in await sweep.events("warning"))
        assert (await sweep.trial("0000")).state == "pending"
        assert (await sweep.run("0000")).state == "finished"

    played(sweep, scene)


def test_closing_does_not_wait_for_workers_that_do_not_answer(floor: Callable[..., Floor]) -> None:
    sweep = floor()

    async def hangs(floor: Floor, work: Any) -> None:
        await asyncio.sleep(1000)

    sweep.trainings = {"0000": [hangs]}

    async def scene() -> None:
        asyncio.get_running_loop().create_task(sweep.run("0000"))
        await sweep.until(lambda: sweep.taken)
        await sweep.desk.request_stop()
        await sweep.close()
        assert not await sweep.desk.may_commit("0000", 1)

    played(sweep, scene)
    trial = read_log(sweep.folder).trials["0000"]
    assert (trial.state, trial.reason) == ("pending", "its workers did not stop in time")
