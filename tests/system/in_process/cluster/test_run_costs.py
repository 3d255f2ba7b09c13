"""The cost of a run: the parts add up to the time that was allocated, over restarts of its workers and its driver."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import run_costs, train_in_process, train_worker
from paceline.cluster import train as train_module
from paceline.cluster.listener import SilentListener
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.run_costs import CostUnits, RunCosts, unit_of
from paceline.cluster.train import train
from paceline.engine import evaluator, meter, trainer
from paceline.engine.checkpoint_files import CheckpointWriter
from paceline.engine.meter import Meter
from paceline.engine.state import TrainState
from paceline.engine.train_step import TrainStep
from paceline.tracking.costs import Goal, Ledger, Reached
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.recorded_run import read_points
from paceline.tracking.run_record import RunRecord
from support.clock import FakeClock
from support.cluster.coordinators import NOWHERE
from support.cluster.local_runs import local_config, small_config
from support.golden import Golden

GOAL = Goal("val/accuracy", 0.9, "max")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(run_costs, "time", clock)
    return clock


Launch = Callable[..., tuple[CostUnits, RunCosts]]


@pytest.fixture
def launch(clock: FakeClock, tmp_path: Path) -> Launch:
    def start(units: float = 2.0) -> tuple[CostUnits, RunCosts]:
        how = CostUnits("core", units, 3600.0, GOAL, since=clock.now, launch=str(clock.now))
        return how, RunCosts(tmp_path, how)

    return start


def spent(ledger: Ledger) -> dict[str, float]:
    return {part: seconds for part, seconds in ledger.parts.items() if seconds}


def test_a_run_with_lost_workers(clock: FakeClock, launch: Launch) -> None:
    counting, run = launch()
    clock.now += 10
    run.begin()
    clock.now += 20
    run.begin()  # those before were lost
    clock.now += 5
    run.measure(7, {"val/accuracy": 0.95})
    run.end({"startup": 1.0, "training": 3.0, "evaluation": 1.0})
    clock.now += 2
    ledger = run.ledger()
    assert spent(ledger) == {"startup": 22, "broken_off": 40, "training": 6, "evaluation": 2, "closing": 4}
    assert (ledger.allocated, ledger.gap) == (counting.allocated, 0.0) == (74.0, 0.0)
    assert ledger.reached == Reached(70.0, step=7)


def test_an_elastic_run_pays_for_the_workers_that_it_had(clock: FakeClock, tmp_path: Path) -> None:
    counting = CostUnits("core", 8.0, 3600.0, GOAL, since=clock.now, launch="elastic", workers=4)
    run = RunCosts(tmp_path, counting)
    clock.now += 10
    run.begin(3)  # of 4
    clock.now += 20
    run.save(run.ledger())
    again = RunCosts(tmp_path, counting)  # the coordinator, too, was lost
    again.begin(1)
    clock.now += 5
    again.measure(7, {"val/accuracy": 0.95}, age_seconds=1.0)
    again.end({"startup": 1.0, "training": 4.0})
    ledger = again.ledger()
    assert spent(ledger) == {"startup": 10 * 6 + 1 * 2, "broken_off": 20 * 6, "training": 4 * 2}
    assert (ledger.allocated, ledger.gap) == (10 * 6 + 20 * 6 + 5 * 2, 0.0)
    assert ledger.reached == Reached(10 * 6 + 20 * 6 + 4 * 2, step=7)


def test_handing_over_is_part_of_closing(clock: FakeClock, launch: Launch) -> None:
    _, run = launch(units=1.0)
    run.begin()
    clock.now += 8
    run.end({"startup": 1.0, "training": 3.0, "closing": 0.5}, elapsed=5.0)
    ledger = run.ledger()
    assert spent(ledger) == {"startup": 1, "training": 3, "closing": 0.5 + 3}
    assert ledger.gap == pytest.approx(0.5 / 8)  # of their own time, this much they cannot tell


def test_the_target_was_reached_when_the_value_was_taken(clock: FakeClock, launch: Launch, golden: Golden) -> None:
    _, run = launch()
    clock.now += 10
    run.begin()
    clock.now += 20
    run.measure(6, {"val/accuracy": 0.89}, 9.0)
    run.measure(7, {"val/accuracy": 0.91}, 6.5)  # both have been on their way
    run.measure(8, {"val/accuracy": 0.99}, 0.5)
    assert run.ledger().reached == Reached(2 * 23.5, step=7)
    golden(run.ledger().lines()[-1][1])


def test_what_was_measured_before_the_launch_cost_it_nothing(clock: FakeClock, launch: Launch) -> None:
    _, run = launch()
    clock.now += 10
    run.measure(7, {"val/accuracy": 0.91}, 60.0)  # an earlier launch has left it with its checkpoint
    assert run.ledger().reached == Reached(0.0, step=7)


def test_launches_add_up_also_one_that_was_killed(clock: FakeClock, launch: Launch) -> None:
    _, first = launch()
    clock.now += 4
    first.begin()
    clock.now += 11
    first.save_sometimes()
    clock.now += 3  # lost with the driver
    _, second = launch()
    clock.now += 1
    second.begin()
    clock.now += 2
    second.end({})  # failed, and did not tell
    ledger = second.ledger()
    assert spent(ledger) == {"startup": 10, "broken_off": 26}
    assert ledger.allocated == 36


@pytest.mark.parametrize("has_begun_anew", [False, True])
def test_a_coordinator_that_was_started_again_counts_each_joule_once(
    clock: FakeClock, launch: Launch, tmp_path: Path, has_begun_anew: bool
) -> None:
    _, earlier = launch()
    earlier.begin()
    earlier.measure(7, {"energy_joules": 100.0})
    earlier.save(earlier.ledger())
    clock.now += 10
    counting, before = launch()
    clock.now += 4
    for joules in (5.0, 3.0):  # of two groups of workers
        before.begin()
        before.measure(7, {"energy_joules": joules})
    clock.now += 2
    before.measure(7, {"val/accuracy": 0.95})
    clock.now += 10
    before.save_sometimes()
    again = RunCosts(tmp_path, counting)
    assert again.ledger().joules == 108.0
    if has_begun_anew:
        again.begin()
    again.measure(7, {"energy_joules": 4.0})
    ledger = again.ledger()
    assert ledger.joules == (112.0 if has_begun_anew else 109.0)
    assert ledger.reached == before.ledger().reached == Reached(12.0, 108.0, step=7)


def test_a_coordinator_that_dies_early_has_counted_the_workers(
    clock: FakeClock, launch: Launch, tmp_path: Path
) -> None:
    counting, before = launch()
    clock.now += 4
    before.begin()
    clock.now += 1
    again = RunCosts(tmp_path, counting)
    clock.now += 5
    again.end({"startup": 1.0, "training": 5.0})
    assert spent(again.ledger()) == {"startup": 10, "training": 10}
    assert again.ledger().gap == 0.0


SPENT = {"startup": 3 + 5, "training": 2 * 7, "evaluation": 2 * 11, "checkpoints": 2 * 13, "closing": 17 + 19}
"""Seconds of a run of two steps, with an evaluation and a checkpoint after each."""


@pytest.fixture
def planted(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is planted here takes time: all clocks of a run are the test's, whatever else the machine does."""

    def takes(seconds: float, owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def slow(*given: Any, **named: Any) -> Any:
            clock.now += seconds
            return work(*given, **named)

        monkeypatch.setattr(owner, name, slow)

    for module in (meter, trainer, train_worker):
        monkeypatch.setattr(module, "perf_counter", clock.monotonic)
    monkeypatch.setattr(train_module, "time", clock)
    takes(3, train_in_process, "check_resources")
    takes(5, train_worker, "build_trainer")
    takes(7, TrainStep, "__call__")
    takes(11, evaluator, "evaluate")
    takes(13, CheckpointWriter, "submit")
    takes(17, TrainState, "weights_sha256")
    takes(19, RunCoordinator, "finish")


@pytest.mark.usefixtures("planted", "work")
@pytest.mark.parametrize(
    ("left_out", "lost"),
    [("nothing", 0), ("training", 2 * 7), ("evaluation", 2 * 11), ("checkpoints", 2 * 13), ("closing", 17)],
)
def test_the_parts_of_a_run_add_up_unless_one_is_left_out(
    left_out: str, lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = Meter.split
    monkeypatch.setattr(Meter, "split", lambda self: {k: v for k, v in split(self).items() if k != left_out})
    tracking = {"target": {"val/loss": 1e6}, "price_per_hour": 3600}
    config = small_config(data__global_batch_size=64, trainer__epochs=2, tracking=tracking)
    result: Any = train(config, new=True, listener=SilentListener())
    cost, total = result.cost, sum(SPENT.values())
    assert cost.allocated == cost.price == result.wall_seconds == total
    assert cost.gap == pytest.approx(lost / total)
    if lost:
        return
    assert spent(cost) == SPENT
    assert cost.reached.step == 1
    assert cost.reached.seconds < total
    assert result.to_json()["cost"]["gap"] == cost.gap
    assert "cost" in dict(result.rows())
    assert json.loads((result.folder / "tracking/artifacts/cost.json").read_bytes()) == cost.to_json()
    assert ("cost/core_seconds", total) in [(key, value) for key, value, _ in result.points]


def test_a_launch_on_another_device_keeps_what_was_spent(clock: FakeClock, launch: Launch, tmp_path: Path) -> None:
    here, run = launch()
    clock.now += 5
    run.begin()
    clock.now += 15
    run.measure(7, {"energy_joules": 7.0})
    run.save(run.ledger())
    clock.now += 1
    there = replace(here, unit="GPU", units=1.0, price_per_hour=7200.0, since=clock.now, launch="other")
    other = RunCosts(tmp_path, there)
    clock.now += 3
    other.begin()
    other.measure(7, {"energy_joules": 2.0, "val/accuracy": 0.95})
    other.save(other.ledger())
    ledger = other.ledger()
    assert spent(ledger.others["core"]) == {"startup": 10, "broken_off": 30}
    assert (ledger.joules, ledger.price) == (9.0, 40.0 + 6.0)
    assert ledger.reached == Reached(3.0, 9.0, {"core": 40.0}, step=7)
    assert RunCosts(tmp_path, there).ledger().allocations == {"GPU": 3.0, "core": 40.0}  # started again
    back = RunCosts(tmp_path, replace(here, since=clock.now, launch="third")).ledger()
    assert (back.allocations, back.reached) == ({"core": 40.0, "GPU": 3.0}, Reached(40.0, 9.0, {"GPU": 3.0}, step=7))


def test_what_is_counted() -> None:
    assert unit_of(local_config(scaling={"num_workers": 2, "cpus_per_worker": 3}), False) == ("core", 6)
    assert unit_of(local_config(scaling={"num_workers": 0}), True) == ("GPU", 1)


@pytest.mark.parametrize("steps", [(5,), ()], ids=["after some steps", "before the first step"])
def test_a_resumed_run_that_takes_no_step_adds_to_the_recorded_cost(
    clock: FakeClock, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    def launch(seconds: float, steps: tuple[int, ...]) -> float:
        counting = CostUnits("core", 2.0, 3600.0, None, since=clock.now, launch=str(clock.now))
        coordinator = RunCoordinator(tmp_path, RunRecord("r", "n", NOWHERE, "e"), counting=counting)
        coordinator.begin("cpu")
        coordinator.metrics([MetricReading(step, 8 * step, {"train/loss": 0.5}) for step in steps])
        clock.now += seconds
        coordinator.close("KILLED", None, 0.0)
        cost = coordinator.cost()
        assert cost is not None
        return cost.allocated

    allocated = [launch(10, steps), launch(3, ()), launch(4, ())]
    points = list(read_points(tmp_path, ["cost/core_seconds"]))
    assert [point.value for point in points] == allocated == [20.0, 26.0, 34.0]
    first = max(steps, default=0)
    assert [point.step for point in points] == [first, first + 1, first + 2]
    launch(1, (first + 9,))  # later steps are in their places again
    assert max(point.step for point in read_points(tmp_path, ["cost/core_seconds"])) == first + 9
