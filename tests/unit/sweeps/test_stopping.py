"""A sweep's coordinator: stops, limits and targets, and a later launch."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from paceline.config.constraints import Constraint
from paceline.sweeps.coordinator.sweep_rules import SweepRules, is_hopeless
from paceline.sweeps.messages import Attempt
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import PlannedTrial, Trial
from paceline.tracking.metric_points import MetricReading
from support.sweeps.simulation import (
    ONE,
    SimulatedSweep,
    Training,
    ends_with,
    full_disk,
    play,
    simulated,
    until_stopped,
    with_rungs,
)


@simulated(slots=2)
async def test_stop_ends_what_runs_and_lets_nothing_begin(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [until_stopped], "0001": [with_rungs(1)], "0003": [with_rungs(1)]}
    assert (await sweep.run("0001")).state == "running"
    calls = [asyncio.create_task(sweep.run(id)) for id in ("0000", "0002")]
    await sweep.until(lambda: len(sweep.taken) == 2)
    await sweep.until_state("0002", "pending")
    await sweep.coordinator.end_early("stopped after 5 s")
    reports = [*await asyncio.gather(*calls), await sweep.run("0001"), await sweep.run("0004")]
    assert [(report.state, report.is_over) for report in reports] == [("pending", True)] * 4
    await sweep.until(lambda: not sweep.alive)
    view = await sweep.view()
    assert view.over == "stopped after 5 s"
    assert await sweep.states() == {"0000": "pending", "0001": "pending", "0002": "pending"}
    assert [group.shape for group in view.groups] == [None, None]
    assert sorted(taken.trial for taken in sweep.taken) == ["0000", "0001"]
    await sweep.close()
    trial = sweep.history().trials["0000"]
    assert (trial.state, trial.reason) == ("pending", "stopped after 5 s")


@simulated(groups=False)
async def test_stop_before_the_group_has_come(sweep: SimulatedSweep) -> None:
    call = await sweep.begin("0000")
    leaving = asyncio.create_task(sweep.coordinator.leave("0000"))
    await sweep.coordinator.end_early("interrupted")
    assert (await call).state == "pending"
    await leaving
    assert await sweep.coordinator.enter(0, 1, 0, b"") is None


@simulated(trial_seconds=0.05)
async def test_trial_that_takes_too_long_is_pruned(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [until_stopped]}
    assert (await sweep.run("0000")).state == "pruned"
    assert "sweep.stop.trial_seconds" in (await sweep.trial("0000")).reason
    assert (await sweep.run("0001")).state == "finished"


def test_target_ends_the_sweep_and_its_later_launches(new_sweep: Any) -> None:
    sweep = new_sweep(slots=2, target=0.5)
    sweep.trainings = {"0000": [until_stopped], "0003": [with_rungs(1)]}

    async def scene() -> None:
        await sweep.run("0003")
        await sweep.coordinator.leave("0003")
        running = asyncio.create_task(sweep.run("0000"))
        await sweep.until(lambda: len(sweep.taken) == 2)
        assert (await sweep.run("0001")).state == "finished"
        assert "0001" in (await sweep.view()).over
        assert (await running).state == "pruned"
        await sweep.until(lambda: not sweep.alive)
        assert (await sweep.states())["0003"] == "pruned"

    play(sweep, scene)
    again = new_sweep(target=0.5)

    async def later() -> None:
        await again.coordinator.prepare([ONE])
        assert (await again.run("0007")).state == "pending"

    play(again, later)


def rules_of(*objectives: Objective, **given: Any) -> SweepRules:
    return SweepRules(objectives=objectives, slots=1, max_failures=0, fresh_processes=False, **given)


@pytest.mark.parametrize(
    ("mode", "target", "changes", "is_reached"),
    [
        ("max", 0.5, {}, True),
        ("max", 0.6, {}, False),
        ("min", 0.5, {}, True),
        ("min", 0.4, {}, False),
        ("max", None, {}, False),
        ("max", 0.4, {"state": "pruned"}, False),
        ("max", 0.4, {"metrics": {"val/loss": 0.1}}, False),
        ("max", 0.4, {"metrics": {"val/accuracy": 0.5, "val/loss": 2.0}}, False),  # breaks a constraint
    ],
)
def test_target_is_reached_by_finished_and_feasible_trials(
    mode: Any, target: float | None, changes: dict[str, Any], is_reached: bool
) -> None:
    rules = rules_of(("val/accuracy", mode), target=target, constraints=(Constraint.parse("val/loss", "< 1"),))
    ended = Trial("0007", {}, "finished", metrics={"val/accuracy": 0.5, "val/loss": 0.1})
    assert ("0007" in rules.target_reached(replace(ended, **changes))) is is_reached


@simulated(slots=2, objectives=(("val/acuracy", "max"),))
async def test_metric_that_no_trial_reports_is_a_fault(sweep: SimulatedSweep, golden: Any) -> None:
    sweep.trainings = {"0000": [until_stopped]}
    running = asyncio.create_task(sweep.run("0000"))
    await sweep.until(lambda: sweep.taken)
    assert (await sweep.run("0001")).state == "finished"
    assert (await running).state == "pending"
    golden((await sweep.view()).fault)
    assert (await sweep.run("0002")).state == "pending"


def evaluates(*readings: dict[str, float]) -> Training:
    """Report so much, then train until told to stop."""

    async def train(sweep: SimulatedSweep, work: Attempt) -> None:
        for step, values in enumerate(readings, start=1):
            await sweep.coordinator.metrics(work.trial_id, work.attempt, [MetricReading(step, 1, values)])
        await until_stopped(sweep, work)

    return train


TRAINED, EVALUATED = {"train/loss": 2.0, "lr": 0.1}, {"train/loss": 1.0, "val/accuracy": 0.5, "val/loss": 1.0}


@pytest.mark.parametrize("metric", ["val/acuracy", "accuracy"])
def test_unknown_metric_ends_the_sweep_at_the_first_evaluation(new_sweep: Any, metric: str, golden: Any) -> None:
    sweep = new_sweep(objectives=(("val/loss", "min"), (metric, "max")))
    sweep.trainings = {"0000": [evaluates(TRAINED, EVALUATED)]}

    async def scene() -> None:
        assert (await sweep.run("0000")).state == "pending"
        view = await sweep.view()
        assert is_hopeless(view.fault)
        golden(view.fault)

    play(sweep, scene)


@pytest.mark.parametrize(
    ("metric", "state", "metrics", "reported", "is_fault"),
    [
        ("val/accuracy", "running", EVALUATED, (), False),
        ("val/f1", "running", TRAINED, (), False),  # it is not evaluated yet
        ("val/f1", "running", EVALUATED, ("val/f1",), False),  # another trial has reported it
        ("own_score", "running", EVALUATED, (), False),
        ("seconds", "running", EVALUATED, (), False),
        ("train/loss", "running", {"val/loss": 0.5}, (), False),
        ("val/f1", "running", EVALUATED, (), True),
        ("own_score", "finished", EVALUATED, (), True),
    ],
)
def test_metric_is_a_fault_once_it_cannot_come_any_more(
    metric: str, state: TrialState, metrics: dict[str, float], reported: tuple[str, ...], is_fault: bool
) -> None:
    limit = Constraint.parse(metric, "> 0")
    wanted = {
        "sweep.metric": rules_of((metric, "max")),
        "sweep.constraints": rules_of(("val/loss", "min"), constraints=(limit,)),
    }
    for key, rules in wanted.items():
        fault = rules.never_reported(Trial("0000", {}, state, metrics=metrics), reported)
        assert (fault.startswith(key), metric in fault, is_hopeless(fault)) == (is_fault,) * 3


@simulated(objectives=(("val/accuracy", "max"), ("val/f1", "max"), ("seconds", "min")))
async def test_metric_that_one_trial_lacks_is_no_fault(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [ends_with(metrics={"val/accuracy": 0.5, "val/f1": math.nan})]}
    assert await sweep.run_all("0000", "0001", "0002") == ["finished"] * 3
    assert (await sweep.view()).fault == ""


@simulated(num_trials=3, slots=2)
async def test_groups_without_trials_to_come_are_ended(sweep: SimulatedSweep) -> None:
    async def wanted() -> int:
        return sum(group.shape is not None for group in (await sweep.view()).groups)

    sweep.trainings = {"0001": [until_stopped]}
    await sweep.coordinator.prepare([ONE, ONE])
    last = asyncio.create_task(sweep.run("0001"))
    await sweep.run("0000")
    assert await wanted() == 2
    await sweep.coordinator.skip(PlannedTrial("0002", {"optimizer.lr": -1}), "it is not above 0")
    assert await wanted() == 1
    await sweep.until(lambda: len(sweep.alive) == 1)
    await sweep.coordinator.end_early("interrupted")
    await last


def test_later_launch_knows_the_trials_that_have_ended_and_continues_with_the_others(new_sweep: Any) -> None:
    first = new_sweep()
    finds_disk_full = ends_with("failed", kind="full_disk", reason="No space left on device")
    first.trainings = {"0001": [with_rungs(1)], "0002": [with_rungs(1, 3)], "0003": [finds_disk_full]}

    async def interrupted() -> None:
        await first.run("0003")
        await first.run("0000")
        await first.run("0001")
        await first.coordinator.prune("0001", "why")
        await first.coordinator.leave("0001")
        await first.run("0002")
        await first.coordinator.end_early("interrupted")

    play(first, interrupted)
    assert set(first.history().ended) == {"0000", "0001"}
    again = new_sweep()

    async def resumed() -> None:
        assert (await again.view()).disk_full == ""
        finished, pruned = await again.run("0000"), await again.run("0001")
        assert (finished.state, finished.values["samples"], finished.values["val/accuracy"]) == ("finished", 100, 0.5)
        assert (pruned.state, pruned.values["samples"], pruned.values["epochs"]) == ("pruned", 10, 0.1)
        for id in ("0002", "0003"):
            assert (await again.run(id)).state == "finished"
            assert (await again.trial(id)).attempts == 2

    play(again, resumed)
    assert [taken.trial for taken in again.taken] == ["0002", "0003"]


@pytest.mark.parametrize("part", ["log.jsonl", "sweep/tracking/journal", "0000/tracking/journal", ""])
@simulated()
async def test_full_disk_loses_no_trial(sweep: SimulatedSweep, part: str) -> None:
    sweep.trainings = {"0000": [with_rungs(1)]}
    call = await sweep.begin("0000")  # one whose record cannot be opened does not begin
    with full_disk(part):
        assert (await call).values["step"] == 1
        assert (await sweep.run("0000")).state == "finished"
        await sweep.close()
    warnings = await sweep.events("warning")
    assert any("No space left" in str(told) for told in warnings)


@simulated()
async def test_closing_does_not_wait_for_workers_that_hang(sweep: SimulatedSweep, golden: Any) -> None:
    async def hangs(sweep: SimulatedSweep, work: Any) -> None:
        await asyncio.Event().wait()

    sweep.trainings = {"0000": [hangs]}
    call = asyncio.create_task(sweep.run("0000"))
    await sweep.until(lambda: sweep.taken)
    await sweep.coordinator.end_early("interrupted")
    await sweep.close()
    assert not await sweep.coordinator.may_commit("0000", 1)
    assert (await call).state == "pending"
    trial = sweep.history().trials["0000"]
    assert trial.state == "pending"
    golden(trial.reason)
