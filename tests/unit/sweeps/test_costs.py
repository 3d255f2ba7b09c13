"""What a sweep costs: the time of its groups adds up to what the driver has measured, whatever becomes of them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cluster.worker_spec import WorkerSpec
from paceline.sweeps import sweep_costs
from paceline.sweeps.messages import Attempt, GroupShape, WantedGroup
from paceline.sweeps.sweep_costs import GroupTimes, SweepCosts, unit_of
from paceline.sweeps.trial import Trial
from paceline.sweeps.worker_group_manager import WorkerGroupManager
from paceline.tracking import metric_points
from paceline.tracking.costs import Goal, Ledger, Reached, Unit
from paceline.tracking.metric_points import MetricReading
from support.clock import FakeClock
from support.sweeps.fake_actor import FakeActor
from support.sweeps.simulation import (
    ONE,
    TWO,
    SimulatedSweep,
    Training,
    dies,
    ends_with,
    finishes,
    play,
    simulated,
    until_stopped,
    with_rungs,
)

GOAL = Goal("val/accuracy", 0.9, "max")


def measure(clock: FakeClock, step: int = 1, **values: float) -> MetricReading:
    """Values of a step that are taken now; `val/` stands before their names."""
    return MetricReading(step, int(clock.now * 1000), {f"val/{name}": value for name, value in values.items()})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(sweep_costs, "time", clock)
    monkeypatch.setattr(metric_points, "time", clock)
    return clock


class PaidSweep(SimulatedSweep):
    """A sweep whose driver measures its groups: each from its start, which takes a second, until it is gone."""

    def __init__(self, folder: Path, clock: FakeClock, **given: Any) -> None:
        super().__init__(folder, goal=GOAL, **given)
        self.clock = clock
        self.allocated = 0.0
        self.gone = 0

    async def pass_second(self) -> None:
        """Let a second pass, and everybody react."""
        self.clock.now += 1.0
        await self.settle()

    async def _serve(self, slot: int, generation: int) -> None:
        wanted = (await self.view()).groups[slot]
        start = self.clock.now
        await self.coordinator.group_started(slot, generation, wanted.shape.units("core"))
        await self.pass_second()
        await super()._serve(slot, generation)
        await self.pass_second()
        await self.coordinator.group_ended(slot, generation)
        self.allocated += (self.clock.now - start) * wanted.shape.units("core")
        self.gone += 1

    async def ledger(self) -> Ledger:
        """Let all groups go, and count."""
        await self.coordinator.let_groups_go()
        await self.until(lambda: self.gone == len(self.groups))
        spent, trials = await self.coordinator.spent(), (await self.coordinator.view()).trials
        given = 3600.0, GOAL, lambda: self.allocated, lambda: spent, lambda: False
        costs = SweepCosts(self.folder / "tracking", "core", *given)
        costs.save(trials)
        return costs.ledger(trials)


def after_a_second(then: Training) -> Training:
    """Report progress, and do something a second later."""

    async def train(sweep: SimulatedSweep, work: Attempt) -> None:
        assert isinstance(sweep, PaidSweep)
        await sweep.coordinator.progress(work.trial_id, work.attempt, 1, 1.0)
        await sweep.pass_second()
        await then(sweep, work)

    return train


@pytest.fixture
def new_sweep(tmp_path: Path, clock: FakeClock) -> Callable[..., PaidSweep]:
    return lambda **given: PaidSweep(tmp_path, clock, **given)


@simulated(slots=2)
async def test_sweep_with_accidents_adds_up(sweep: PaidSweep) -> None:
    takes_long = after_a_second(finishes)
    sweep.trainings = {
        "0000": [takes_long],
        "0001": [after_a_second(ends_with("failed"))],
        "0002": [with_rungs(1)],
        "0003": [after_a_second(dies), takes_long],
    }
    await sweep.run_all("0000", "0001")
    await sweep.run("0002")
    await sweep.pass_second()
    await sweep.coordinator.prune("0002", "no good")
    await sweep.run("0003", TWO)
    ledger = await sweep.ledger()
    assert list((await sweep.states()).values()) == ["finished", "failed", "pruned", "finished"]
    seconds = ledger.parts
    assert ledger.gap < 1e-9
    assert seconds["finished"] >= 1 + 2 * 2  # the last one has two cores, and was resumed after a loss
    assert min(seconds[part] for part in ("failed", "pruned", "startup", "waiting", "shutdown")) >= 1
    assert seconds["unfinished"] == 0
    for part in ("failed", "pruned", "waiting", "shutdown"):  # one that is left out is seen
        assert Ledger("core", ledger.allocated, {**seconds, part: 0.0}).gap > 0.01


def test_costs_of_an_interrupted_launch_are_kept(tmp_path: Path, new_sweep: Callable[..., PaidSweep]) -> None:
    allocated: list[float] = []
    ledgers: list[Ledger] = []

    def launch(interrupts: bool) -> None:
        sweep = new_sweep()
        sweep.trainings["0000"] = [until_stopped if interrupts else after_a_second(finishes)]

        async def scene() -> None:
            call = asyncio.create_task(sweep.run("0000"))
            if interrupts:
                await sweep.until(lambda: sweep.taken)
                await sweep.pass_second()
                await sweep.coordinator.end_early("interrupted")
            await call
            ledgers.append(await sweep.ledger())
            allocated.append(sweep.allocated)

        play(sweep, scene)

    launch(interrupts=True)
    launch(interrupts=False)
    before, after = ledgers
    assert before.parts["unfinished"] >= 1
    assert before.parts["finished"] == after.parts["unfinished"] == 0
    assert after.parts["finished"] > before.parts["unfinished"]  # its first attempt is among it
    assert after.allocated == pytest.approx(sum(allocated))
    assert max(before.gap, after.gap) < 1e-9
    assert Ledger.read(tmp_path / "tracking") == after


@simulated()
async def test_costs_to_the_target_include_earlier_trials(sweep: PaidSweep, clock: FakeClock) -> None:
    async def reaches_it(sweep: SimulatedSweep, work: Attempt) -> None:
        await sweep.coordinator.metrics(work.trial_id, work.attempt, [measure(clock, accuracy=0.95)])
        await after_a_second(finishes)(sweep, work)

    sweep.trainings = {"0000": [after_a_second(ends_with("failed"))], "0001": [after_a_second(reaches_it)]}
    await sweep.run("0000")
    await sweep.run("0001")
    ledger = await sweep.ledger()
    assert ledger.reached is not None
    assert ledger.parts["failed"] + ledger.parts["startup"] + 1 <= ledger.reached.seconds
    assert ledger.reached.seconds <= ledger.allocated - 2


def test_target_was_reached_when_the_first_value_was_taken(clock: FakeClock, golden: Any) -> None:
    times = GroupTimes(GOAL)
    times.start(0, 1, 1.0)
    times.start(1, 1, 2.0)
    clock.now += 10
    times.end(1, 1)
    clock.now += 4
    too_low, first = measure(clock, 62, accuracy=0.89), measure(clock, 63, accuracy=0.952)
    clock.now += 1
    second = measure(clock, 3, accuracy=0.97)
    clock.now += 6
    times.end(0, 1)
    clock.now += 2
    times.measure("0001", 1, second)
    times.measure("0000", 1, too_low)
    times.measure("0000", 1, first)  # heard of last, but taken first
    reached = times.spent().reached
    assert reached == Reached(2 * 10 + 14, trial="0000", step=63)
    ledger = Ledger("core", 41.0, {}, goal=GOAL, reached=reached)
    assert Ledger.from_json(ledger.to_json()).reached == reached
    golden(ledger.lines()[-1][1])


def test_group_that_is_to_leave_stays_in_shutdown(clock: FakeClock) -> None:
    times = GroupTimes()
    times.start(0, 1, 2.0)
    times.turn_to(0, 1, "shutdown")
    times.turn_to(0, 1, "waiting")  # its last trial has just ended
    clock.now += 3
    times.end(0, 1)
    assert times.spent().parts == {"startup": 0.0, "waiting": 0.0, "shutdown": 6.0}


@pytest.fixture
def costs(tmp_path: Path) -> Callable[..., SweepCosts]:
    def make(times: GroupTimes, allocated: float = 1.0, unit: Unit = "core", whole: bool = False) -> SweepCosts:
        return SweepCosts(tmp_path, unit, 3600.0, None, lambda: allocated, times.spent, lambda: whole)

    return make


def test_file_holds_the_ledger_and_a_damaged_one_is_passed_over(
    costs: Callable[..., SweepCosts], tmp_path: Path
) -> None:
    for content in (b"", b"[]", b"{}", b'{"unit": "core"}'):
        (tmp_path / "cost.json").write_bytes(content)
        assert costs(GroupTimes()).ledger([]).allocated == 1.0
    times = GroupTimes()
    times.start(0, 1, ONE.units("core"))
    times.end(0, 1)
    made = costs(times)
    made.save([])
    assert json.loads((tmp_path / "cost.json").read_bytes()) == {**made.ledger([]).to_json(), "open": {"core": {}}}


ON_CPU, ON_GPU = GroupShape(2, 8.0, 0.0, "pack"), GroupShape(2, 4.0, 1.0, "pack")
SHARED = GroupShape(1, 4.0, 0.5, "pack")


def test_gpus_are_the_unit_as_soon_as_there_are_some(tmp_path: Path) -> None:
    assert [unit_of(shapes, tmp_path) for shapes in ([ON_CPU], [ON_GPU, ON_CPU], [SHARED])] == ["core", "GPU", "GPU"]
    assert [shape.units("GPU") for shape in (ON_CPU, ON_GPU, SHARED)] == [0.0, 2.0, 0.5]
    assert [shape.units("core") for shape in (ON_CPU, ON_GPU, SHARED)] == [16.0, 8.0, 4.0]


@pytest.mark.parametrize(
    ("shapes", "is_known"), [([ON_GPU], True), ([ON_GPU, SHARED], False), ([ON_GPU, ON_CPU], False), ([ON_CPU], False)]
)
def test_energy_is_known_where_no_gpu_is_shared(
    costs: Callable[..., SweepCosts], monkeypatch: pytest.MonkeyPatch, shapes: list[GroupShape], is_known: bool
) -> None:
    monkeypatch.setattr(WorkerGroupManager, "_trainer", lambda self, wanted: SimpleNamespace(fit=lambda: None))
    groups = WorkerGroupManager(FakeActor(), Path("nowhere"), WorkerSpec("{}"), print, "GPU")
    groups.follow([WantedGroup(slot, 1, shape) for slot, shape in enumerate(shapes)])
    assert groups.have_whole_gpus is is_known
    groups.join(60.0)
    times = GroupTimes(GOAL)
    for trial in ("0000", "0001"):
        times.measure(trial, 1, MetricReading(1, 1, {"energy_joules": 50.0, "val/accuracy": 0.95}))
    ledger = costs(times, unit="GPU", whole=groups.have_whole_gpus).ledger([])
    assert ledger.joules == (100.0 if is_known else None)
    assert ledger.reached is not None
    assert ledger.reached.joules == (50.0 if is_known else None)


def test_sweep_is_resumed_on_another_kind_of_device(costs: Callable[..., SweepCosts], tmp_path: Path) -> None:
    def launch(unit: Unit, trials: dict[str, float], states: dict[str, Any]) -> Ledger:
        times = GroupTimes()
        times._trials.update(trials)
        made = costs(times, sum(trials.values()), unit)
        now = [Trial(id, {}, state) for id, state in states.items()]
        made.save(now)
        assert Ledger.read(tmp_path) == made.ledger(now)
        return made.ledger(now)

    launch("core", {"0000": 3.0, "0001": 4.0}, {"0000": "finished", "0001": "pending"})
    second = launch("GPU", {"0001": 1.0, "0002": 2.0}, {"0000": "finished", "0001": "finished", "0002": "pending"})
    assert second.allocations == {"GPU": 3.0, "core": 7.0}
    assert (second.price, second.gap, second.others["core"].gap) == (10.0, 0.0, 0.0)
    assert (second.parts["finished"], second.parts["unfinished"]) == (1.0, 2.0)
    # the second trial has finished meanwhile, on GPUs
    assert (second.others["core"].parts["finished"], second.others["core"].parts["unfinished"]) == (7.0, 0.0)
    third = launch("core", {"0002": 5.0}, {"0000": "finished", "0001": "finished", "0002": "failed"})
    assert third.allocations == {"core": 12.0, "GPU": 3.0}
    assert (third.parts["failed"], third.others["GPU"].parts["failed"]) == (5.0, 2.0)
    assert unit_of([], tmp_path) == "core"  # nothing is left to run: it stays what it was
    assert unit_of([ON_GPU], tmp_path) == "GPU"
