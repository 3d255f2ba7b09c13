"""A planted bottleneck is named by a split of real steps on real ranks, and its fix gives back what was lost."""

from collections import Counter
from typing import Any

import pytest

from paceline.engine.ranks import Ranks
from paceline.study.step_split.diagnosis import diagnose
from support.bottlenecks import PLANTS, TO_MEND, Plant
from support.mending import recovered, sample_seconds
from support.ranks import run_ranks

STEPS, WARM_UP = 15, 4
RUNS = 10
LOOKS = {"small_batch": 5, "compute": 3}
"""Looks at a plant where a look compares two splits of a fraction of a second, one of which may meet a busy moment.
The verdict of most looks counts."""


def kinds(ranks: Ranks, plant: Plant, times: int) -> list[str]:
    """What this rank names in each run."""
    config = plant.config()
    build: Any = lambda config: plant.build(config, ranks)  # noqa: E731
    return [diagnose(config, build, STEPS, WARM_UP).bottleneck.kind for _ in range(times)]


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_bottleneck_is_named(kind: str) -> None:
    plant = PLANTS[kind]
    for named in run_ranks(kinds, plant.ranks, plant, LOOKS.get(kind, 1), timeout=200):
        assert Counter(named).most_common(1)[0][0] == kind, named


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLANTS)
def test_the_right_one_is_named_nine_times_of_ten(kind: str) -> None:
    plant = PLANTS[kind]
    of_ranks = run_ranks(kinds, plant.ranks, plant, RUNS, timeout=500)
    print(kind, Counter(of_ranks[0]))
    assert all(each == of_ranks[0] for each in of_ranks)
    assert of_ranks[0].count(kind) >= 0.9 * RUNS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "logging" else pytest.mark.slow) for name in TO_MEND]
)
def test_a_fix_gives_back_what_was_lost(name: str) -> None:
    """Of three looks and three measurements: beside other tests, one may meet a moment in which the cores are taken."""
    plant, field = TO_MEND[name]
    seconds, _ = run_ranks(sample_seconds, plant.ranks, plant, field, 3, timeout=200)[0]
    print(name, seconds, recovered(seconds))
    assert recovered(seconds) >= 0.8
