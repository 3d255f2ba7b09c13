"""Paired benchmarks of step times that were recorded on a shared machine, with planted techniques.

`step_times.json` was recorded on two cores on 2026-11-22; it says so itself, with versions.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.tuneups.paired_benchmark import Pair
from paceline.tuneups.screening import PAIRS, ScreenedPair
from support.toys import toy_config

RECORDING = Path(__file__).parents[2] / "support" / "tuneup" / "step_times.json"
EVERY = ("quiet", "one_neighbour", "two_neighbours", "two_neighbours_later", "quiet_later")
CONDITIONS: list[Any] = [
    ("one_neighbour", 300),
    *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in EVERY),
]
"""Conditions, and how often each is replayed."""
TURNS = 48
"""Readings of each side in a window: 1.4 s when nothing disturbs."""
CONFIG = toy_config()
Seconds = list[npt.NDArray[np.float64]]


def recorded(condition: str) -> Seconds:
    """Seconds of all readings of each process, in the order in which they were taken, whosever they were."""
    processes = json.loads(RECORDING.read_text())[condition]["processes"]
    return [np.asarray(each["milliseconds"], dtype=np.float64).ravel() / 1000 for each in processes]


def screened(processes: Seconds, draw: np.random.Generator, speedup: float) -> ScreenedPair:
    """A comparison over a contiguous stretch of one process's readings; a longer one continues at the beginning.

    Each reading is a turn, and which of two neighbours is the technique's is drawn.
    """
    series = processes[draw.integers(len(processes))]
    stretch = np.take(series, draw.integers(len(series)) + np.arange(2 * PAIRS * TURNS), mode="wrap")
    order = draw.integers(2, size=(PAIRS, TURNS, 1), dtype=np.intp) ^ np.array([0, 1])
    pairs = np.take_along_axis(stretch.reshape(PAIRS, TURNS, 2), order, axis=2).sum(axis=1) / [1.0, speedup]
    return ScreenedPair("planted", CONFIG, CONFIG, [Pair(*each) for each in pairs])


@pytest.mark.parametrize("speedup", [1.05, 1 / 1.05])
@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_a_planted_difference_is_not_discarded(name: str, replays: int, speedup: float) -> None:
    processes, draw = recorded(name), np.random.default_rng(0)
    found = [screened(processes, draw, speedup) for _ in range(replays)]
    assert np.mean([each.is_promising for each in found]) >= 0.9
    wrong = "slower" if speedup > 1 else "faster"
    assert not any(each.seen == wrong for each in found)


@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_half_of_what_does_nothing_is_discarded(name: str, replays: int) -> None:
    processes, draw = recorded(name), np.random.default_rng(1)
    assert np.mean([screened(processes, draw, 1.0).is_promising for _ in range(replays)]) <= 0.5
