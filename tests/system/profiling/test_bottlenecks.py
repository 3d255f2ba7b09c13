"""A planted bottleneck is named by a split of real steps on real ranks, and its fix gives back what was lost."""

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import pytest

from paceline.engine.dist_context import DistContext
from paceline.profiling.diagnosis import diagnose
from paceline.profiling.parts import PARTS, StepSplit
from support.bottlenecks import PLANTS, TO_MEND, Plant
from support.mending import recovered, sample_seconds
from support.ranks import run_ranks

STEPS, WARM_UP = 15, 4
RUNS = 10
BY_TWO_SPLITS = ("small_batch", "compute")
"""Told apart by how a step grows with its batch: by two splits of a fraction of a second, of which a busy moment of the
machine may meet one. They are named in the slow test, on a machine with nothing else to do."""
PART_OF = {"data": "data", "synchronisation": "forward", "communication": "communication", "logging": "logging"}
"""The largest part of a step, where the plant is most of it."""


class Look(NamedTuple):
    """One rank's look at a plant."""

    kind: str
    """Of the bottleneck that is named."""
    split: StepSplit
    delay: float
    """Seconds a step that were planted."""


def look(ranks: DistContext, plant: Plant, times: int) -> list[Look]:
    """What this rank finds in each run."""
    plant = plant.scaled(ranks)
    config = plant.config()
    build: Any = lambda config: plant.build(config, ranks)  # noqa: E731
    found = [diagnose(config, build, STEPS, WARM_UP) for _ in range(times)]
    return [Look(each.bottleneck.kind, each.split, plant.step_delay) for each in found]


@cache
def looks(kind: str) -> list[Look]:
    """The look of each rank at a plant."""
    plant = PLANTS[kind]
    return [found for (found,) in run_ranks(look, plant.ranks, plant, 1, timeout=200)]


@pytest.mark.parametrize("kind", [kind for kind in PLANTS if kind not in BY_TWO_SPLITS])
def test_a_planted_bottleneck_is_named(kind: str) -> None:
    assert [each.kind for each in looks(kind)] == [kind] * PLANTS[kind].ranks


@pytest.mark.parametrize("kind", PLANTS)
def test_the_parts_add_up_to_the_step_and_the_planted_one_is_the_largest(kind: str) -> None:
    splits = [each.split for each in looks(kind)]
    assert [split.rank for split in splits] == list(range(PLANTS[kind].ranks))
    assert all(split.ranks == splits[0].ranks for split in splits)
    for split in splits:
        assert set(split.seconds) == set(PARTS)
        assert min(split.seconds.values()) >= 0
        assert sum(split.seconds.values()) == pytest.approx(split.step_seconds, rel=0.02)
        assert sum(map(split.fraction, PARTS)) == pytest.approx(1, rel=0.02)
    if kind in PART_OF:
        split, part = splits[0], PART_OF[kind]
        assert split.seconds[part] >= looks(kind)[0].delay
        assert max(PARTS, key=split.fraction) == part


def test_waiting_for_a_slow_rank_is_no_communication() -> None:
    (_, fast, delay), (_, slow, _) = looks("straggler")
    assert fast.seconds["waiting"] > 0.7 * delay > slow.seconds["waiting"]
    assert fast.fraction("communication") < fast.fraction("waiting")
    assert fast.seconds["communication"] == slow.seconds["communication"]
    found = fast.straggler()
    assert found is not None
    assert found.rank == 1
    assert fast.max("forward") == slow.seconds["forward"] > delay > fast.seconds["forward"]
    assert fast.median("forward") == pytest.approx((fast.seconds["forward"] + slow.seconds["forward"]) / 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLANTS)
def test_the_right_one_is_named_nine_times_of_ten(kind: str) -> None:
    plant = PLANTS[kind]
    of_ranks = run_ranks(look, plant.ranks, plant, RUNS, timeout=500)
    named = [[each.kind for each in of_rank] for of_rank in of_ranks]
    print(kind, Counter(named[0]))
    assert all(each == named[0] for each in named)
    assert named[0].count(kind) >= 0.9 * RUNS


@pytest.mark.slow
@pytest.mark.parametrize("name", TO_MEND)
def test_a_fix_gives_back_what_was_lost(name: str) -> None:
    """Of three looks and three measurements: beside other tests, one may meet a moment in which the cores are taken."""
    plant, field = TO_MEND[name]
    seconds, _ = run_ranks(sample_seconds, plant.ranks, plant, field, 3, timeout=200)[0]
    print(name, seconds, recovered(seconds))
    assert recovered(seconds) >= 0.8
