"""What a sweep costs: the groups' time adds up to what the driver has measured, whatever becomes of them."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cluster.assignment import Assignment
from paceline.sweeps.costs import SweepCosts, unit_of
from paceline.sweeps.desk import timing
from paceline.sweeps.desk.timing import GroupTimes
from paceline.sweeps.groups import Groups
from paceline.sweeps.trials import Trial
from paceline.sweeps.work import GroupShape, WantedGroup
from paceline.tracking import points
from paceline.tracking.costs import Goal, Ledger, Reached, Unit
from paceline.tracking.points import Reading
from sweeps.desk_players import ONE, TWO, Floor, dies, ending, finishes, played, until_stopped, with_rungs
from sweeps.played_actor import PlayedActor

GOAL = Goal("val/accuracy", 0.9, "max")
PART = 0.05
"""Seconds of each of the things that take time."""


def taken_now(values: dict[str, float]) -> Reading:
    """Values of the first step."""
    return Reading(1, time.time_ns() // 1_000_000, values)


class Paid(Floor):
    """A floor whose driver measures its groups: each from its start, which takes a while, until it is gone."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(folder, goal=GOAL, **given)
        self.allocated = 0.0
        self.trials: list[Trial] = []

    async def _serve(self, seat: int, generation: int) -> None:
        wanted = (await self.desk.view(0)).groups[seat]
        assert wanted.shape is not None
        start = time.monotonic()
        await self.desk.group_started(seat, generation, wanted.shape.units("core"))
        try:
            await asyncio.sleep(PART)
            await super()._serve(seat, generation)
            await asyncio.sleep(PART)
        finally:
            await self.desk.group_ended(seat, generation)
            self.allocated += (time.monotonic() - start) * wanted.shape.units("core")

    async def over(self) -> Ledger:
        """Let all groups go, and count."""
        await self.desk.let_groups_go()
        await self.until(lambda: not self.alive)
        await asyncio.sleep(2 * PART)
        spent = await self.desk.spent()
        self.trials = await self.desk.trials()
        given = 3600.0, GOAL, lambda: self.allocated, lambda: spent, lambda: False
        costs = SweepCosts(self.folder / "tracking", "core", *given)
        costs.save(self.trials)
        return costs.ledger(self.trials)


async def fails(floor: Floor, work: Any) -> None:
    await asyncio.sleep(PART)
    await floor.desk.finish(work.trial_id, work.attempt, ending("failed"))


async def takes_long(floor: Floor, work: Any) -> None:
    await asyncio.sleep(PART)
    await finishes(floor, work)


async def dies_late(floor: Floor, work: Any) -> None:
    await floor.desk.progress(work.trial_id, work.attempt, 1, 1.0)
    await asyncio.sleep(PART)
    await dies(floor, work)


def test_a_sweep_with_accidents_adds_up(tmp_path: Path) -> None:
    floor = Paid(tmp_path, seats=2)
    floor.trainings = {"0000": [takes_long], "0001": [fails], "0002": [with_rungs(1)], "0003": [dies_late, takes_long]}
    ledgers = []

    async def scene() -> None:
        await asyncio.gather(floor.run("0000"), floor.run("0001"))
        await floor.run("0002")
        await asyncio.sleep(PART)
        await floor.desk.prune("0002", "no good")
        await floor.run("0003", TWO)
        ledgers.append(await floor.over())

    played(floor, scene)
    (ledger,) = ledgers
    assert [trial.state for trial in floor.trials] == ["finished", "failed", "pruned", "finished"]
    assert ledger.gap < 0.01
    seconds = ledger.parts
    assert seconds["finished"] > PART + 2 * PART * 2  # the second one has two cores, and went on after a loss
    assert min(seconds[part] for part in ("failed", "pruned", "startup", "waiting", "shutdown")) >= PART * 0.9
    assert seconds["unfinished"] == 0
    for part in ("failed", "pruned", "waiting", "shutdown"):  # one that is left out is seen
        assert Ledger("core", ledger.allocated, {**seconds, part: 0.0}).gap > 0.01


def test_what_a_killed_launch_has_spent_is_kept(tmp_path: Path) -> None:
    first = Paid(tmp_path)
    first.trainings["0000"] = [until_stopped]
    ledgers = []

    async def stopped() -> None:
        going_on = asyncio.create_task(first.run("0000"))
        await first.until(lambda: first.taken)
        await asyncio.sleep(PART)
        await first.desk.request_stop()
        await going_on
        ledgers.append(await first.over())

    played(first, stopped)
    second = Paid(tmp_path)

    async def gone_on_with() -> None:
        await second.run("0000")
        ledgers.append(await second.over())

    played(second, gone_on_with)
    before, after = ledgers
    assert before.parts["unfinished"] >= PART
    assert before.parts["finished"] == after.parts["unfinished"] == 0
    assert after.parts["finished"] > before.parts["unfinished"]  # its first attempt is among it
    assert after.allocated == pytest.approx(first.allocated + second.allocated)
    assert max(before.gap, after.gap) < 0.01
    assert Ledger.read(tmp_path / "tracking") == after


def test_all_that_was_spent_before_counts_to_the_target(tmp_path: Path) -> None:
    floor = Paid(tmp_path)
    ledgers = []

    async def good(floor: Floor, work: Any) -> None:
        await asyncio.sleep(PART)
        await floor.desk.metrics(work.trial_id, work.attempt, [taken_now({"val/accuracy": 0.95})])
        await asyncio.sleep(PART)
        await finishes(floor, work)

    floor.trainings = {"0000": [fails], "0001": [good]}

    async def scene() -> None:
        await floor.run("0000")
        await floor.run("0001")
        ledgers.append(await floor.over())

    played(floor, scene)
    reached = ledgers[0].reached
    assert reached is not None
    assert ledgers[0].parts["failed"] + ledgers[0].parts["startup"] + PART < reached.seconds
    assert reached.seconds < ledgers[0].allocated - 2 * PART


class Clock:
    """A time that goes on when the test says so, for both clocks."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def test_the_target_was_reached_when_the_first_value_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(points, "time", clock)
    times = GroupTimes(GOAL)

    def take(value: float, step: int) -> Reading:
        return Reading(step, int(clock.now * 1000), {"val/accuracy": value})

    times.start(0, 1, 1.0)
    times.start(1, 1, 2.0)
    clock.now += 10
    times.end(1, 1)
    clock.now += 4
    too_low, first = take(0.89, 62), take(0.952, 63)
    clock.now += 1
    second = take(0.97, 3)
    clock.now += 6
    times.end(0, 1)
    clock.now += 2
    times.measure("0001", 1, second)
    times.measure("0000", 1, too_low)
    times.measure("0000", 1, first)  # heard of last, but taken first
    reached = times.spent().reached
    assert reached == Reached(2 * 10 + 14, trial="0000", step=63)
    ledger = Ledger("core", 41.0, {}, goal=GOAL, reached=reached)
    assert ledger.lines()[-1][1] == "val/accuracy 0.9 was reached after 34 core-seconds, by trial 0000 at step 63"
    assert Ledger.from_json(ledger.to_json()).reached == reached


@pytest.fixture
def costs(tmp_path: Path) -> Callable[..., SweepCosts]:
    def make(times: GroupTimes, allocated: float = 1.0, unit: Unit = "core", whole: bool = False) -> SweepCosts:
        return SweepCosts(tmp_path, unit, 3600.0, None, lambda: allocated, times.spent, lambda: whole)

    return make


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"unit": "core"}'])
def test_a_damaged_file_is_no_reason_to_stop(costs: Callable[..., SweepCosts], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cost.json").write_bytes(content)
    assert costs(GroupTimes()).ledger([]).allocated == 1.0


def test_groups_that_nobody_has_told_of_are_left_alone(costs: Callable[..., SweepCosts]) -> None:
    times = GroupTimes()
    times.turn_to(0, 1, "waiting")
    times.end(0, 1)
    assert sum(costs(times).ledger([]).parts.values()) == 0


def test_the_file_tells_the_same(costs: Callable[..., SweepCosts], tmp_path: Path) -> None:
    times = GroupTimes()
    times.start(0, 1, ONE.units("core"))
    times.end(0, 1)
    made = costs(times)
    made.save([])
    assert json.loads((tmp_path / "cost.json").read_bytes()) == {**made.ledger([]).to_json(), "open": {"core": {}}}


ON_CPU = GroupShape(2, 8.0, 0.0, "pack")
ON_GPU = GroupShape(2, 4.0, 1.0, "pack")
SHARED = GroupShape(1, 4.0, 0.5, "pack")


@pytest.mark.parametrize(("shapes", "unit"), [([ON_CPU], "core"), ([ON_GPU, ON_CPU], "GPU"), ([SHARED], "GPU")])
def test_gpus_are_counted_as_soon_as_there_are_some(tmp_path: Path, shapes: list[GroupShape], unit: Unit) -> None:
    assert unit_of(shapes, tmp_path) == unit


def test_a_group_on_cpu_costs_no_gpus() -> None:
    assert [shape.units("GPU") for shape in (ON_CPU, ON_GPU, SHARED)] == [0.0, 2.0, 0.5]
    assert [shape.units("core") for shape in (ON_CPU, ON_GPU, SHARED)] == [16.0, 8.0, 4.0]


@pytest.mark.parametrize(
    ("shapes", "tells"), [([ON_GPU], True), ([ON_GPU, SHARED], False), ([ON_GPU, ON_CPU], False), ([ON_CPU], False)]
)
def test_energy_is_told_where_no_gpu_is_shared(
    costs: Callable[..., SweepCosts], monkeypatch: pytest.MonkeyPatch, shapes: list[GroupShape], tells: bool
) -> None:
    monkeypatch.setattr(Groups, "_trainer", lambda self, wanted: SimpleNamespace(fit=lambda: None))
    groups = Groups(PlayedActor(), Path("nowhere"), Assignment("{}"), print, "GPU")
    groups.follow([WantedGroup(seat, 1, shape) for seat, shape in enumerate(shapes)])
    assert groups.have_whole_gpus is tells
    groups.join(5.0)
    times = GroupTimes(GOAL)
    for trial in ("0000", "0001"):
        times.measure(trial, 1, taken_now({"energy_joules": 50.0, "val/accuracy": 0.95}))
    ledger = costs(times, unit="GPU", whole=groups.have_whole_gpus).ledger([])
    assert ledger.joules == (100.0 if tells else None)
    assert ledger.reached is not None
    assert ledger.reached.joules == (50.0 if tells else None)


def test_a_sweep_that_goes_on_with_another_kind_of_device(costs: Callable[..., SweepCosts], tmp_path: Path) -> None:
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
