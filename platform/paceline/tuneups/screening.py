"""Paired benchmarks in one build: cheap, and good enough to rank techniques and to discard most of them.

These figures do not decide any verdict. Two builds of the same config may differ permanently by a percent or two,
depending on where their memory lies. `confirmation` measures over several builds.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Literal

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import TOO_SLOW, Answer, Job, part_of
from paceline.config.batch_sizes import largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.execution import DeviceMemory
from paceline.tuneups.paired_benchmark import Pair, fewest_steps, is_clearly_slower
from paceline.tuneups.statistics.intervals import Interval, speedup
from paceline.tuneups.statistics.sequential_test import LEAST_EFFECT

Seen = Literal["faster", "slower", "similar"]

BENCHMARK = "paceline.tuneups.job_execution:benchmark"
MIN_PAIRS, PAIRS, MAX_PAIRS = 3, 6, 18
"""Pairs of a paired benchmark with slow steps, of one with other steps, and of all benchmarks of two configs."""
PROMISING = 0.015
"""A technique whose speed differs by less than this fraction is discarded."""
WINDOW_SECONDS = 0.5
"""Seconds of a window of each side, if there is time."""
LEAST_WINDOW_SECONDS = 0.1
"""Shortest window in seconds. A shorter one has too few turns for a busy machine to affect both sides equally."""
SLOWER = 3
"""Factor by which a technique may be slower than the baseline before it counts as hanging."""
LEAST_PATIENCE_SECONDS = 20.0
"""Seconds that a benchmark may take in any case: a busy machine needs some to build two trainers."""
FIRST_ROUND_SHARE = 0.5
"""Largest share of the time left for the first benchmark of each technique, all together."""


@dataclass
class ScreenedPair:
    """A config compared with another one: all paired benchmarks of the two."""

    name: str
    baseline: ExperimentConfig
    technique: ExperimentConfig
    pairs: list[Pair] = field(default_factory=list)
    problem: str = ""
    """Reason why it cannot be measured; empty if it can."""
    is_too_slow: bool = False
    """True if it was ended at the time limit of a benchmark, so that it may well run where there is more time."""
    warnings: list[str] = field(default_factory=list)
    """Warnings raised while the technique was built."""
    build_seconds: float = 0.0
    """Longest seconds until the technique was ready for its first step, including compilation."""
    benchmarks: int = 0
    in_turn: bool = False
    """True if only one of the two is on the device at a time."""

    @property
    def interval(self) -> Interval:
        """Technique's speed over the baseline's in this build."""
        return speedup([pair.baseline for pair in self.pairs], [pair.technique for pair in self.pairs])

    @property
    def seen(self) -> Seen:
        """Speed of the technique: `faster` or `slower` if the difference is clear and large enough, else `similar`."""
        estimate, low, high = self.interval
        if low > 1 and estimate >= 1 + LEAST_EFFECT:
            return "faster"
        return "slower" if high < 1 and estimate <= 1 / (1 + LEAST_EFFECT) else "similar"

    @property
    def is_promising(self) -> bool:
        """True if a difference was seen that is worth confirming."""
        return bool(self.pairs) and not self.problem and abs(log(self.interval.estimate)) >= log(1 + PROMISING)

    @property
    def is_open(self) -> bool:
        """True if a further benchmark is worth its time: it may be faster, but that is not clear yet."""
        may_be_faster = self.seen == "similar" and self.interval.high >= 1 + LEAST_EFFECT
        return self.is_promising and may_be_faster and len(self.pairs) < MAX_PAIRS


class Screening:
    """Runs paired benchmarks on a bench, as long as there is time."""

    def __init__(
        self,
        bench: Bench,
        clock: Clock,
        seed: int,
        memory: DeviceMemory,
        watch: Callable[[ScreenedPair], None] = lambda screened: None,
        efficiency: Callable[[ExperimentConfig], float] = lambda config: 1.0,
    ) -> None:
        """Args:
        memory: knows which configs fit on the device together.
        efficiency: share of a config's samples that the baseline takes for the same gain.
        """
        self._efficiency = efficiency
        self._bench, self._clock, self._watch = bench, clock, watch
        self.memory = memory
        self._random = random.Random(seed)
        self._longest = _benchmark_seconds(WINDOW_SECONDS)
        self.window_seconds = WINDOW_SECONDS
        """Seconds of a window of each side."""
        self.seconds_per_sample = 0.0
        """Seconds per sample of the baseline; 0 if not known."""

    @property
    def longest(self) -> float:
        """Seconds of the longest benchmark, estimated from those so far."""
        return self._longest

    def has_time_for(self, benchmarks: int) -> bool:
        """Return True if there is time for this number of benchmarks."""
        return self._clock.has(benchmarks * self._longest)

    def fit_windows(self, benchmarks: int) -> None:
        """Shorten the windows if time is short, so that this number of benchmarks fits into it."""
        fair = FIRST_ROUND_SHARE * self._clock.left / max(1, benchmarks) / _benchmark_seconds(1.0)
        self.window_seconds = min(WINDOW_SECONDS, max(LEAST_WINDOW_SECONDS, fair))
        self._longest = _benchmark_seconds(self.window_seconds)

    def run(self, screened: Sequence[ScreenedPair], share: float = 1.0) -> None:
        """Benchmark each pair once, in random order, or in the given order if there is no time for all; the techniques
        that compile come last. Then benchmark the unclear pairs again, the one that may be fastest first.

        Args:
            share: share of the time left after the first round that further rounds may take.
        """
        waiting = [each for each in screened if not each.benchmarks]
        if self._clock.has(len(waiting) * self._longest):
            self._random.shuffle(waiting)
        for each in sorted(waiting, key=_compiles):
            if self._clock.has(self._longest):
                self.measure(each)
        stop_at = self._clock.left * (1 - share)
        while unclear := [each for each in screened if each.is_open]:
            if self._clock.left - stop_at < self._longest:
                break
            self.measure(max(unclear, key=lambda each: each.interval.high))

    def measure(self, screened: ScreenedPair) -> None:
        """Run one paired benchmark. Two configs that run out of memory together are measured in turn."""
        screened.in_turn = screened.in_turn or not self.memory.holds(screened.baseline, screened.technique)
        if self._measure(screened).kind == "oom" and not screened.in_turn:
            screened.in_turn, screened.problem = True, ""
            self._measure(screened)
        self._watch(screened)

    def _measure(self, screened: ScreenedPair) -> Answer:
        options: dict[str, Any] = {
            "seed": self._random.randrange(2**31),
            "window_seconds": self.window_seconds,
            "seconds": max(self._longest, self._clock.left / 4),
            "min_pairs": MIN_PAIRS,
            "max_pairs": PAIRS,
            "in_turn": screened.in_turn,
            "ends_when_slower": True,
        }
        begun = self._clock.elapsed
        parts = part_of(screened.baseline), part_of(screened.technique)
        limit = self._patience_with(screened) + self.fewest_seconds(screened.baseline, screened.technique)
        answer = self._bench.do(Job(BENCHMARK, parts, options, limit))
        screened.benchmarks += 1
        screened.is_too_slow = answer.kind == TOO_SLOW
        if answer.problem:
            screened.problem = answer.problem
        else:
            pairs = self.pairs_of(answer.values, screened.baseline, screened.technique)
            if not _compiles(screened):
                # one that ended early says little of how long others take
                least = self._longest if is_clearly_slower(pairs) else self._longest * 0.8
                self._longest = max(least, self._clock.elapsed - begun)
            screened.pairs += pairs
            screened.warnings = list(dict.fromkeys([*screened.warnings, *answer.values["warnings"]]))
            screened.build_seconds = max(screened.build_seconds, answer.values["build_seconds"])
        return answer

    def _patience_with(self, screened: ScreenedPair) -> float:
        """Return the seconds after which a benchmark is given up: what compiles for long must not take the time in
        which the other techniques are confirmed. Without the baseline's own, there would be none."""
        if screened.technique is screened.baseline:
            return self._clock.patience
        return min(self._clock.patience, max(self._clock.left, LEAST_PATIENCE_SECONDS))

    def pairs_of(
        self, values: Mapping[str, Any], baseline: ExperimentConfig, technique: ExperimentConfig
    ) -> list[Pair]:
        """Return the pairs in a benchmark's answer, in seconds for the gain of a sample of the baseline."""
        own, other = self._efficiency(baseline), self._efficiency(technique)
        return [Pair(first / own, second / other) for first, second in values["pairs"]]

    def fewest_seconds(self, baseline: ExperimentConfig, technique: ExperimentConfig) -> float:
        """Return the seconds of the fewest pairs, if steps are slow and loader processes have prefetched many batches.
        The technique may be `SLOWER` times slower than the baseline."""
        return SLOWER * self.seconds_per_sample * (_fewest_samples(baseline) + _fewest_samples(technique))


def _compiles(screened: ScreenedPair) -> bool:
    """Return True if one of the two is compiled, which may take as long as all other benchmarks."""
    return screened.technique.trainer.compile != screened.baseline.trainer.compile


def _fewest_samples(config: ExperimentConfig) -> int:
    """Return the most samples of a side in the fewest pairs of a benchmark."""
    steps = fewest_steps(config.data.num_workers * config.data.prefetch_factor, MIN_PAIRS)
    return steps * largest_sizes(config).global_batch_size


def _benchmark_seconds(window_seconds: float) -> float:
    """Return the expected seconds of a benchmark with windows of this length, before one has been measured."""
    return 2 * PAIRS * window_seconds
