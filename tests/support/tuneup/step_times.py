"""Replays of recorded step times: what a paired benchmark would have measured here, with a planted effect."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

RECORDING = Path(__file__).with_name("step_times.json")

Array = npt.NDArray[np.float64]


class Condition:
    """The recording under one condition, of all its processes."""

    def __init__(self, name: str) -> None:
        turns = json.loads(RECORDING.read_text())[name]["processes"]
        self.series = [np.asarray(each["milliseconds"], dtype=np.float64).ravel() / 1000 for each in turns]
        """Seconds of all readings of each process, in the order in which they were taken, whosever they were."""

    def pairs(self, draw: np.random.Generator, count: int, turns: int, speedup: float = 1.0) -> Array:
        """Seconds of baseline and technique, shape (count, 2), from a contiguous stretch of one process's
        readings.

        Each reading is a turn, and which of two neighbours is the technique's is drawn. A stretch that is longer than
        the recording continues at its beginning.
        """
        series = self.series[draw.integers(len(self.series))]
        stretch = np.take(series, draw.integers(len(series)) + np.arange(2 * count * turns), mode="wrap")
        both = stretch.reshape(count, turns, 2)
        swapped = draw.integers(2, size=(count, turns, 1), dtype=np.intp)
        return np.take_along_axis(both, swapped ^ np.array([0, 1]), axis=2).sum(axis=1) / [1.0, speedup]
