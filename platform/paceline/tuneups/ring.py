"""Duels on a bench: which configs meet, for how long, and what is known of them so far."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.bench import Bench
from paceline.tuneups.clock import Clock
from paceline.tuneups.duel import Pair, fewest_steps
from paceline.tuneups.jobs import Job, part_of
from paceline.tuneups.judging import MIN_PAIRS, PAIRS_OF_A_DUEL, Standing
from paceline.tuneups.statistics.budget import next_technique

WINDOW_SECONDS = 0.5
"""How long a window of each side takes, where there is time."""
LEAST_WINDOW_SECONDS = 0.1
"""A window that is shorter has too few turns for a busy machine to hit both sides alike."""
SLOWER = 3
"""By how many times a technique may be slower than the baseline without being taken for one that hangs."""
FIRST_ROUND_SHARE = 0.5
"""Of the time, what a first duel of each is to take at the most."""


@dataclass
class Contest:
    """A config against another one: all duels between them."""

    name: str
    baseline: ExperimentConfig
    technique: ExperimentConfig
    standing: Standing
    problem: str = ""
    """Why it cannot be measured; empty when it can."""
    warnings: list[str] = field(default_factory=list)
    """What was told when the technique was built."""
    build_seconds: float = 0.0
    """How long it took to be ready for its first step, compiling included, the longest time."""
    duels: int = 0
    seconds: float = 0.0
    """What its duels took together."""

    @property
    def is_open(self) -> bool:
        """Whether more pairs may change what is known."""
        return not self.problem and self.standing.verdict is None


class Ring:
    """Has contests fought out on a bench, as long as there is time."""

    def __init__(
        self, bench: Bench, clock: Clock, seed: int, told: Callable[[Contest], None] = lambda contest: None
    ) -> None:
        self._bench, self._clock, self._told = bench, clock, told
        self._random = random.Random(seed)
        self._window = WINDOW_SECONDS
        self._longest = _duel_seconds(self._window)
        self.seconds_per_sample = 0.0
        """Of the baseline, where it is known."""

    @property
    def longest(self) -> float:
        """Seconds that a duel takes at the most, as far as has been seen."""
        return self._longest

    def fit_windows(self, contests: int) -> None:
        """With little time, shorten the windows, so that each of so many contests gets the pairs of a first duel."""
        fair = FIRST_ROUND_SHARE * self._clock.left / max(1, contests) / _duel_seconds(1.0)
        self._window = min(WINDOW_SECONDS, max(LEAST_WINDOW_SECONDS, fair))
        self._longest = _duel_seconds(self._window)

    def run(self, contests: Sequence[Contest], share: float = 1.0) -> None:
        """Let all meet, in random order, or in the given one where the time will not do for all; then again where a
        further duel is worth most, until all is decided.

        Args:
            share: of the time that is left after the first round of all, what further rounds may take.
        """
        waiting = [contest for contest in contests if not contest.duels]
        if self._clock.has(len(waiting) * self._longest):
            self._random.shuffle(waiting)
        for contest in waiting:
            if self._clock.has(self._longest):
                self.meet(contest)
        stop_at = self._clock.left * (1 - share)
        while (next_one := self._most_worth(contests, self._clock.left - stop_at)) is not None:
            self.meet(next_one)

    def _most_worth(self, contests: Sequence[Contest], left_seconds: float) -> Contest | None:
        by_name = {contest.name: contest for contest in contests if contest.is_open and contest.duels}
        judges = {name: contest.standing.judge for name, contest in by_name.items()}
        costs = {name: contest.seconds / max(1, len(contest.standing.pairs)) for name, contest in by_name.items()}
        whole_duels = left_seconds / PAIRS_OF_A_DUEL
        chosen = next_technique(judges, costs, whole_duels, self._random.randrange(2**31))
        return None if chosen is None else by_name[chosen]

    def meet(self, contest: Contest) -> None:
        """One duel."""
        standing = contest.standing
        options: dict[str, Any] = {
            "seed": self._random.randrange(2**31),
            "window_seconds": self._window,
            "seconds": max(self._longest, self._clock.left / 4),
            **standing.options(),
        }
        begun = self._clock.elapsed
        parts = part_of(contest.baseline), part_of(contest.technique)
        limit = self._clock.patience + self._fewest_seconds(contest)
        answer = self._bench.do(Job("duel", parts, options, limit))
        took = self._clock.elapsed - begun
        contest.duels += 1
        contest.seconds += took
        if answer.problem:
            contest.problem = answer.problem
        else:
            self._longest = max(self._longest * 0.8, took)
            standing.add(pairs_of(answer.values))
            contest.warnings = list(dict.fromkeys([*contest.warnings, *answer.values["warnings"]]))
            contest.build_seconds = max(contest.build_seconds, answer.values["build_seconds"])
        self._told(contest)

    def _fewest_seconds(self, contest: Contest) -> float:
        """What the fewest pairs take where steps are slow and loader processes have many batches ready; a technique
        that is some times slower than the baseline included."""
        samples = _fewest_samples(contest.baseline) + _fewest_samples(contest.technique)
        return SLOWER * self.seconds_per_sample * samples


def _fewest_samples(config: ExperimentConfig) -> int:
    """Samples of a side in the fewest pairs of a duel, at the most."""
    steps = fewest_steps(config.data.num_workers * config.data.prefetch_factor, MIN_PAIRS)
    return steps * derive(config, None).batch.global_batch_size


def _duel_seconds(window_seconds: float) -> float:
    """What a duel of such windows takes, about; before one has been seen."""
    return 2 * PAIRS_OF_A_DUEL * window_seconds


def pairs_of(values: Mapping[str, Any]) -> list[Pair]:
    """The pairs of a duel's answer."""
    return [Pair(*each) for each in values["pairs"]]
