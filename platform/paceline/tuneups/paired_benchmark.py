"""Two configs against each other in one process: pairs of windows, each made of many short turns.

What slows a machine down for a while slows both sides of a pair, the more alike the more finely they alternate, so
that the ratio of the two says what a comparison of two separate runs would not.

What decides is not how long a window is, but how finely the two alternate. `tests/support/tuneup/step_times.json` has
step times of a small CNN on two cores, alone and beside one and two neighbours that load a core in bursts of about a
second. In one piece, a longer window catches more of a burst, and so does not help. In turns of 30 ms, the bursts fall
on both sides alike. Of 1,000 replays of 40 pairs with a planted 5 % difference, so many were seen for what they are:

    window of each side     one piece of 1 s   turns of 1 s in all
    quiet                         70 %               100 %
    one neighbour                  8 %               100 %
    two neighbours                 5 %               100 %
"""

import random
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
"""Baseline and technique change places after about so long, and after one step at least; the order of each two is
random."""
AHEAD = 4
"""A turn has at least so many times the steps that loader processes have ready at its beginning, for these not to
matter."""


class Pair(NamedTuple):
    """Two windows of the same stretch of time, in seconds per sample."""

    baseline: float
    technique: float


@dataclass(frozen=True)
class BenchmarkRules:
    """Rules for the length of a paired benchmark."""

    window_seconds: float = 0.5
    """How long a window of each side takes, in turns; at least one."""
    min_pairs: int = 3
    max_pairs: int = 6
    seconds: float = 60.0
    """After so much time no further pair begins, but for the first `min_pairs`."""
    seed: int = 0
    is_technique_first: bool = False
    """Whether the technique is built before the baseline: which one is may decide where its memory lies."""
    in_turn: bool = False
    """Whether only one of the two is built at a time, all windows of one before those of the other."""


@dataclass
class BenchmarkResult:
    """The pairs of a paired benchmark."""

    pairs: list[Pair] = field(default_factory=list)
    steps: tuple[int, int] = (0, 0)
    """Optimizer steps of a turn, of the baseline and of the technique."""
    warnings: list[str] = field(default_factory=list)
    """Warnings when the technique was built."""
    build_seconds: float = 0.0
    """How long the technique took to be ready for its first step, compiling included."""


class Side:
    """One of the two, and its part of the pair that is being measured."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.step_seconds = stepper.calibrate()
        self.steps = max(1, AHEAD * stepper.ahead, round(TURN_SECONDS / self.step_seconds))
        """Optimizer steps of a turn."""
        self.samples, self.seconds = 0, 0.0

    @property
    def turn_seconds(self) -> float:
        """About how long a turn takes."""
        return self.steps * self.step_seconds

    def take_turn(self) -> None:
        """Some steps, which count."""
        self.stepper.catch_up()
        window = self.stepper.run(self.steps)
        self.samples += window.samples
        self.seconds += window.seconds

    def end_window(self) -> float:
        """Seconds per sample of all turns since the last call."""
        seconds_per_sample = self.seconds / self.samples
        self.samples, self.seconds = 0, 0.0
        return seconds_per_sample


def fewest_steps(ahead: int, pairs: int) -> int:
    """Steps of a side in so many pairs of windows of one short turn, those included that do not count.

    Args:
        ahead: steps that its loader processes have ready.
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
    """The pairs of two trainers that take turns. Every rank must call it."""
    result = BenchmarkResult(warnings=technique.warnings, build_seconds=technique.build_seconds)
    sides = Side(baseline), Side(technique)
    result.steps = sides[0].steps, sides[1].steps
    turns = max(1, ceil(rules.window_seconds / max(side.turn_seconds for side in sides)))
    order, begun = random.Random(rules.seed), monotonic()
    while _goes_on(len(result.pairs), rules, monotonic() - begun, ranks):
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
    """Benchmark two trainers that the device does not hold together. The two sides of a pair do not share a slowdown of
    the machine then; several builds average over it."""
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
    """Seconds per sample of each window of a trainer that is alone; and its warnings, and what building it took."""
    windows: list[float] = []
    half = replace(rules, seconds=rules.seconds / 2)
    with closing(Stepper(config, ranks)) as stepper:
        side, begun = Side(stepper), monotonic()
        turns = max(1, ceil(rules.window_seconds / side.turn_seconds))
        while len(windows) < count if count is not None else _goes_on(len(windows), half, monotonic() - begun, ranks):
            for _ in range(turns):
                side.take_turn()
            windows.append(side.end_window())
        return windows, (stepper.warnings, stepper.build_seconds)


def _goes_on(pairs: int, rules: BenchmarkRules, seconds: float, ranks: DistContext) -> bool:
    if pairs < rules.min_pairs:
        return True
    over = pairs >= rules.max_pairs or seconds > rules.seconds
    return not ranks.from_first([float(over)])[0]
