"""Benchmark of two configs against each other in one process: pairs of windows, each made of many short turns.

A temporary slowdown of the machine slows both sides of a pair. The more finely they alternate, the more equally it does
so. The ratio of the two is therefore more precise than a comparison of two separate runs.

The length of a window matters less than how finely the two alternate. `tests/support/tuneup/step_times.json` has
step times of a small CNN on two cores, alone and beside one and two neighbours that load a core in bursts of about a
second. In one piece, a longer window catches more of a burst, and so does not help. In turns of 30 ms, the bursts fall
on both sides alike. Of 1,000 replays of 40 pairs with a planted 5 % difference, this share was detected:

    window of each side     one piece of 1 s   turns of 1 s in all
    quiet                         70 %               100 %
    one neighbour                  8 %               100 %
    two neighbours                 5 %               100 %
"""

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import ceil
from time import monotonic
from typing import NamedTuple

from paceline.bench.stepper import Stepper
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.trial_steps import release

TURN_SECONDS = 0.03
"""Seconds of a turn, which has at least one step. The order of the two sides is random in each pair of turns."""
AHEAD = 4
"""A turn has at least this many times the steps that loader processes have prefetched at its start, so that these do
not matter."""


CLEARLY_SLOWER = 0.9
"""Speed relative to the baseline below which a technique is out, and needs no precise figure."""


class Pair(NamedTuple):
    """Two windows of the same stretch of time, in seconds per sample."""

    baseline: float
    technique: float

    @property
    def speedup(self) -> float:
        """Speed of the technique over that of the baseline."""
        return self.baseline / self.technique


@dataclass(frozen=True)
class BenchmarkRules:
    """Rules for the length of a paired benchmark."""

    window_seconds: float = 0.5
    """Seconds of a window of each side, summed over its turns; a window has at least one turn."""
    min_pairs: int = 3
    max_pairs: int = 6
    seconds: float = 60.0
    """Seconds after which no further pair begins, except for the first `min_pairs`."""
    seed: int = 0
    is_technique_first: bool = False
    """True if the technique is built before the baseline. The order may affect where their memory lies."""
    in_turn: bool = False
    """True if only one of the two exists at a time, with all windows of one before those of the other."""
    ends_when_slower: bool = False
    """True if no further pair begins once the technique is clearly slower in each of the fewest pairs."""


@dataclass
class BenchmarkResult:
    """The pairs of a paired benchmark."""

    pairs: list[Pair] = field(default_factory=list)
    steps: tuple[int, int] = (0, 0)
    """Optimizer steps per turn of the baseline and of the technique."""
    warnings: list[str] = field(default_factory=list)
    """Warnings raised while the technique was built."""
    build_seconds: float = 0.0
    """Seconds until the technique was ready for its first step, including compilation."""


class Side:
    """One of the two configs, and its part of the current pair."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.step_seconds = stepper.calibrate()
        self.steps = max(1, AHEAD * stepper.ahead, round(TURN_SECONDS / self.step_seconds))
        """Optimizer steps per turn."""
        self.samples, self.seconds = 0, 0.0

    @property
    def turn_seconds(self) -> float:
        """Expected seconds of a turn."""
        return self.steps * self.step_seconds

    def take_turn(self) -> None:
        """Run and measure the steps of one turn."""
        self.stepper.catch_up()
        window = self.stepper.run(self.steps)
        self.samples += window.samples
        self.seconds += window.seconds

    def end_window(self) -> float:
        """Return the seconds per sample of all turns since the last call."""
        seconds_per_sample = self.seconds / self.samples
        self.samples, self.seconds = 0, 0.0
        return seconds_per_sample


def fewest_steps(ahead: int, pairs: int) -> int:
    """Return the steps of a side in this number of pairs of windows of one short turn, including uncounted steps.

    Args:
        ahead: steps that its loader processes have prefetched.
    """
    return pairs * max(1, (AHEAD + 1) * ahead)


def paired_benchmark(
    baseline: ExperimentConfig, technique: ExperimentConfig, rules: BenchmarkRules, ranks: DistContext
) -> BenchmarkResult:
    """Build two configs, and measure the technique against the baseline. Every rank must call it."""
    if rules.in_turn:
        return _in_turn(baseline, technique, rules, ranks)
    configs = (technique, baseline) if rules.is_technique_first else (baseline, technique)
    with closing(Stepper(configs[0], ranks)) as first, closing(Stepper(configs[1], ranks)) as second:
        sides = (second, first) if rules.is_technique_first else (first, second)
        return alternating(*sides, rules, ranks)


def alternating(baseline: Stepper, technique: Stepper, rules: BenchmarkRules, ranks: DistContext) -> BenchmarkResult:
    """Measure two trainers that take turns. Every rank must call it."""
    result = BenchmarkResult(warnings=technique.warnings, build_seconds=technique.build_seconds)
    sides = Side(baseline), Side(technique)
    result.steps = sides[0].steps, sides[1].steps
    turns = max(1, ceil(rules.window_seconds / max(side.turn_seconds for side in sides)))
    order, begun = random.Random(rules.seed), monotonic()
    while _continues(len(result.pairs), rules, monotonic() - begun, ranks, is_clearly_slower(result.pairs)):
        for _ in range(turns):
            both = list(sides)
            order.shuffle(both)
            for side in both:
                side.take_turn()
        result.pairs.append(Pair(sides[0].end_window(), sides[1].end_window()))
    return result


def _in_turn(
    baseline: ExperimentConfig, technique: ExperimentConfig, rules: BenchmarkRules, ranks: DistContext
) -> BenchmarkResult:
    """Benchmark two trainers that the device cannot hold together. The two sides of a pair then do not share a slowdown
    of the machine; several builds average over it."""
    release(ranks.device)
    result = BenchmarkResult()
    found: dict[bool, list[float]] = {}
    for is_technique in (True, False) if rules.is_technique_first else (False, True):
        count = len(next(iter(found.values()))) if found else None
        windows, stepper_facts = _windows_of(technique if is_technique else baseline, rules, ranks, count)
        release(ranks.device)
        found[is_technique] = windows
        if is_technique:
            result.warnings, result.build_seconds = stepper_facts
    result.pairs = [Pair(*both) for both in zip(found[False], found[True], strict=True)]
    return result


def _windows_of(
    config: ExperimentConfig, rules: BenchmarkRules, ranks: DistContext, count: int | None
) -> tuple[list[float], tuple[list[str], float]]:
    """Return the seconds per sample of each window of a trainer that runs alone, its warnings and build seconds."""
    windows: list[float] = []
    half = replace(rules, seconds=rules.seconds / 2)
    with closing(Stepper(config, ranks)) as stepper:
        side, begun = Side(stepper), monotonic()
        turns = max(1, ceil(rules.window_seconds / side.turn_seconds))
        while len(windows) < count if count is not None else _continues(len(windows), half, monotonic() - begun, ranks):
            for _ in range(turns):
                side.take_turn()
            windows.append(side.end_window())
        return windows, (stepper.warnings, stepper.build_seconds)


def is_clearly_slower(pairs: Sequence[Pair]) -> bool:
    """Return True if the technique is clearly slower in each pair."""
    return all(pair.speedup < CLEARLY_SLOWER for pair in pairs)


def _continues(pairs: int, rules: BenchmarkRules, seconds: float, ranks: DistContext, is_slower: bool = False) -> bool:
    if pairs < rules.min_pairs:
        return True
    over = pairs >= rules.max_pairs or seconds > rules.seconds or (rules.ends_when_slower and is_slower)
    return not ranks.from_first([float(over)])[0]
