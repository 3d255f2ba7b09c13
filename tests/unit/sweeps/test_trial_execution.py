"""A sweep's coordinator: which worker group gets which trial, groups that start again, and how trials end."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paceline.sweeps.trial import PlannedTrial, Trial
from paceline.tracking.metric_points import MetricReading
from support.sweeps.simulation import (
    ONE,
    TWO,
    SimulatedSweep,
    dies,
    ending,
    finishes,
    rung,
    simulated,
    until_stopped,
    with_rungs,
)


@simulated()
async def test_finished_trial_is_in_the_journal(sweep: SimulatedSweep) -> None:
    await sweep.run("0000", **{"optimizer.lr": 0.3})
    await sweep.close()
    trial = sweep.history().trials["0000"]
    assert trial.seconds > 0
    expected = Trial("0000", {"optimizer.lr": 0.3}, "finished", metrics={"val/accuracy": 0.5}, weights_sha256="ab")
    measured: dict[str, Any] = {"steps": 10, "total_steps": 10, "samples": 100, "attempts": 1, "seconds": trial.seconds}
    assert trial == replace(expected, **measured, samples_per_second=5.0, peak_memory_bytes=7)


@simulated(slots=2)
async def test_trial_takes_the_free_slot_whose_group_has_its_shape(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE, TWO])
    await sweep.run("0000", TWO)
    await sweep.run("0001", ONE)
    assert sorted(sweep.groups) == [(0, ONE), (1, TWO)]


@simulated()
async def test_trial_that_needs_fresh_processes_never_gets_a_used_group(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE])
    for number, fresh in enumerate([True, False, False, True, False]):
        await sweep.run(f"{number:04d}", fresh=fresh)
    generations = [taken.generation for taken in sweep.taken]
    # the prepared one was not used; no other trial gets one after 0000 or 0003
    assert [generation - generations[0] for generation in generations] == [0, 2, 2, 3, 5]


@simulated(fresh_processes=True)
async def test_process_isolation_gives_each_trial_a_group(sweep: SimulatedSweep) -> None:
    assert await sweep.run_all("0000", "0001", "0002") == ["finished"] * 3
    assert len(sweep.groups) == 3


@simulated(max_failures=2)
async def test_trial_that_keeps_losing_its_workers_gets_them_again_and_then_fails(
    sweep: SimulatedSweep, golden: Any
) -> None:
    sweep.trainings = {"0000": [dies] * 5}
    assert await sweep.run_all("0000", "0001") == ["failed", "finished"]
    assert [details["failures"] for details in await sweep.events("restarted")] == [1, 2]
    attempts = [(taken.trial, taken.attempt) for taken in sweep.taken]
    assert attempts == [("0000", 1), ("0000", 2), ("0000", 3), ("0001", 1)]
    golden((await sweep.trial("0000")).reason)
    assert sweep.groups == [(0, ONE)]


@simulated()
async def test_reports_of_an_earlier_attempt_change_nothing(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [dies, until_stopped]}
    report = asyncio.create_task(sweep.run("0000"))
    await sweep.until(lambda: len(sweep.taken) == 2)
    coordinator = sweep.coordinator
    await coordinator.begin("0000", 1, "cpu")
    assert await coordinator.metrics("0000", 1, [MetricReading(9, 1, {"val/accuracy": 0.99})])
    assert await coordinator.progress("0000", 1, 9, 1.0)  # it is to stop
    assert not await coordinator.rung("0000", 1, rung(9))
    assert [await coordinator.may_commit("0000", attempt) for attempt in (1, 2)] == [False, True]
    await coordinator.event("0000", 1, "checkpoint", {"path": "late"})
    await coordinator.finish("0000", 1, ending("failed"))
    trial = await sweep.trial("0000")
    assert (trial.state, trial.metrics, trial.checkpoint) == ("running", {}, "")
    await coordinator.end_early("interrupted")
    assert (await report).state == "pending"


@simulated()
async def test_trial_of_another_shape_gets_another_group_and_the_earlier_one_leaves(sweep: SimulatedSweep) -> None:
    await sweep.run("0000")
    idle = asyncio.create_task(sweep.coordinator.take(0, 1, 1))
    await sweep.run("0001", TWO)
    assert await idle is None
    assert await sweep.coordinator.enter(0, 1, 0, b"") is None
    await sweep.coordinator.group_failed(0, 1, "too late")
    assert (await sweep.run("0002", TWO)).state == "finished"
    await sweep.run("0003")
    assert sweep.groups == [(0, ONE), (0, TWO), (0, ONE)]
    assert [taken.generation for taken in sweep.taken] == [1, 2, 2, 3]


@simulated()
async def test_skipped_point_is_a_trial_that_never_runs(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0001": [with_rungs(1)]}
    await sweep.coordinator.skip(PlannedTrial("0000", {"optimizer.lr": -1}), "it is not above 0")
    assert (await sweep.run("0000")).state == "skipped"
    await sweep.run("0001")
    await sweep.coordinator.leave("0001")
    await sweep.coordinator.skip(PlannedTrial("0001", {"optimizer.lr": -1}), "it is not above 0")
    await sweep.close()
    trials = sweep.history().trials
    assert {id: trial.state for id, trial in trials.items()} == {"0000": "skipped", "0001": "skipped"}
    assert trials["0000"].reason == "it is not above 0"
    assert [taken.trial for taken in sweep.taken] == ["0001"]


@simulated(max_failures=0)
async def test_first_report_of_an_end_stays_and_workers_lost_after_it_count_for_no_trial(sweep: SimulatedSweep) -> None:
    async def one_rank_fails(sweep: SimulatedSweep, work: Any) -> None:
        await sweep.coordinator.finish(work.trial_id, work.attempt, ending("failed", kind="oom"))
        await sweep.until_state("0001", "running")  # the next one waits for the group
        await sweep.coordinator.finish(work.trial_id, work.attempt, ending("finished"))
        raise ProcessLookupError

    sweep.trainings = {"0000": [one_rank_fails]}
    assert await sweep.run_all("0000", "0001") == ["oom", "finished"]
    assert (await sweep.trial("0001")).attempts == 1


@pytest.mark.parametrize(
    ("kind", "state", "steps"),
    [("diverged", "diverged", 10), ("oom", "oom", 1), ("other", "failed", 1)],
)
@simulated()
async def test_failed_trial_keeps_its_metrics_and_how_far_it_came(
    sweep: SimulatedSweep, kind: str, state: str, steps: int
) -> None:
    reason = "the loss is nan at step 10"

    async def fails(sweep: SimulatedSweep, work: Any) -> None:
        await sweep.coordinator.metrics(work.trial_id, work.attempt, [MetricReading(1, 1, {"val/accuracy": 0.2})])
        await sweep.coordinator.finish(work.trial_id, work.attempt, ending("failed", kind=kind, reason=reason))

    sweep.trainings = {"0000": [fails]}
    report = await sweep.run("0000")
    assert (report.state, report.values["val/accuracy"]) == (state, 0.2)
    assert (await sweep.trial("0000")).steps == steps
    [event] = await sweep.events("ended")
    assert (event["trial"], event["state"], event["reason"]) == ("0000", state, reason)


@simulated(num_trials=4)
async def test_view_holds_only_what_has_changed_since_a_version(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0002": [until_stopped]}
    await sweep.run("0000")
    await sweep.run("0001")
    assert [trial.id for trial in (await sweep.view()).trials] == ["0000", "0001"]
    await sweep.until_records_are_closed()
    seen = (await sweep.view()).cursor
    call = await sweep.begin("0002")
    newer = await sweep.view(seen)
    assert [trial.id for trial in newer.trials] == ["0002"]
    assert newer.cursor.version > seen.version
    await sweep.coordinator.end_early("interrupted")
    await call
    assert {trial.id: trial.state for trial in (await sweep.view(newer.cursor)).trials} == {"0002": "pending"}
    assert len((await sweep.view()).trials) == 3


@simulated(groups=False, slots=2)
async def test_view_counts_the_slots_at_work(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    waiting = await sweep.begin("0001")
    assert (await sweep.view()).busy == 1
    await finishes(sweep, work)
    await call
    assert (await sweep.view()).busy == 0
    await sweep.coordinator.end_early("interrupted")
    await waiting
