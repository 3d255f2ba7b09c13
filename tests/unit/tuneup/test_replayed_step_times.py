"""Paired benchmarks of step times that were recorded on a shared machine, with planted techniques.

`step_times.json` was recorded on two cores on 2026-11-22; it says so itself, with versions.
"""

from typing import Any

import numpy as np
import pytest

from paceline.tuneups.paired_benchmark import Pair
from paceline.tuneups.screening import PAIRS, ScreenedPair
from support.toys import toy_config
from support.tuneup.step_times import Condition

EVERY = ("quiet", "one_neighbour", "two_neighbours", "two_neighbours_later", "quiet_later")
CONDITIONS: list[Any] = [
    ("one_neighbour", 300),
    *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in EVERY),
]
"""Conditions, and how often each is replayed."""
TURNS = 48
"""Readings of each side in a window: 1.4 s when nothing disturbs."""
CONFIG = toy_config()


def screened(condition: Condition, draw: np.random.Generator, speedup: float) -> ScreenedPair:
    pairs = condition.pairs(draw, PAIRS, TURNS, speedup)
    return ScreenedPair("planted", CONFIG, CONFIG, [Pair(*each) for each in pairs])


@pytest.mark.parametrize("speedup", [1.05, 1 / 1.05])
@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_a_planted_difference_is_not_discarded(name: str, replays: int, speedup: float) -> None:
    condition, draw = Condition(name), np.random.default_rng(0)
    found = [screened(condition, draw, speedup) for _ in range(replays)]
    assert np.mean([each.is_promising for each in found]) >= 0.9
    wrong = "slower" if speedup > 1 else "faster"
    assert not any(each.seen == wrong for each in found)


@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_half_of_what_does_nothing_is_discarded(name: str, replays: int) -> None:
    condition, draw = Condition(name), np.random.default_rng(1)
    assert np.mean([screened(condition, draw, 1.0).is_promising for _ in range(replays)]) <= 0.5
