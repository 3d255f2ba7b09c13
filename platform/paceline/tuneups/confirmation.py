"""Confirmation of the screening's results, in several builds of fresh processes.

Each build is a job of its own: in new processes, both configs of each pair are built again, in an order that changes
from build to build, and benchmarked for a few pairs of windows. A build gives one log ratio for each pair of configs;
what is claimed is tested over builds, see `statistics.sequential_test`.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.cluster.worker_spec import TrialWorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.paired_benchmark import Pair
from paceline.tuneups.screening import PAIRS as SCREENED_PAIRS
from paceline.tuneups.screening import Screening
from paceline.tuneups.statistics.intervals import (
    Interval,
    as_ratios,
    hodges_lehmann,
    log_ratios,
    student_interval,
)
from paceline.tuneups.statistics.sequential_test import (
    LEAST_DEVIATION,
    LEAST_EFFECT,
    LOOKS,
    Comparison,
    SequentialTest,
    deviation_between,
)

BUILD = "paceline.tuneups.job_execution:build"
AA = "A/A"
"""Name of the comparison of the baseline with itself."""
TOGETHER = "all/together"
"""Name of the comparison of all candidates together with the baseline. Like `AA`, it cannot be a technique's name."""
TECHNIQUES_ALPHA = 0.035
"""Probability that any technique gets a false verdict on its speed. The rest of 5 % is for the recommendation and for
the quality."""
RECOMMENDATION_ALPHAS = (0.006, 0.002, 0.002)
"""Probabilities of recommending a combination without a gain: for the first combination, and for those that it is cut
back to."""
SHARE_BUILDS = 6
"""Builds after which a technique that has not been shown to add something to the others is left out."""
SHARE_ERROR = 0.05
"""Error level of the interval of a technique's share. It only decides which techniques are left out."""
NARROW_BUILDS = 6
"""Builds of a combination for which the time kept to cut it back is used if it is not cut back: over three builds, its
interval is several times as wide."""
MIN_PAIRS, PAIRS = 2, 4
"""Fewest and most pairs of windows per pair of configs in a build; the fewest if steps are slow."""
WINDOW_SECONDS = 0.25
"""Longest window, in seconds: more builds are more informative than longer windows."""
START_COST = 1.0
"""Assumed time to start the processes of a build, in units of the time to measure one pair of configs."""


class ConfigPair(NamedTuple):
    """Two configs whose speeds are compared."""

    baseline: ExperimentConfig
    technique: ExperimentConfig


class Share(NamedTuple):
    """Speedup of all candidates together over all but one technique."""

    interval: Interval
    """Not corrected for several looks: it only decides which techniques are left out."""
    builds: int

    @property
    def adds_something(self) -> bool:
        """True if the technique is worth its line in the config, or too few builds tell."""
        low, high = self.interval.low, self.interval.high
        is_open = low <= 1 and high >= 1 + LEAST_EFFECT and self.builds < SHARE_BUILDS
        return is_open or (low > 1 and self.interval.estimate >= 1 + LEAST_EFFECT)


@dataclass(frozen=True)
class Confirmed:
    """Result of several builds."""

    together: Comparison | None = None
    """Comparison of all candidates together with the baseline; None if it was not measured."""
    techniques: Mapping[str, Comparison] = field(default_factory=dict)
    """Comparison of each technique alone with the baseline, by name, for those that were measured."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """By the name of the technique that is left out."""


class Confirmation:
    """Measures pairs of configs in fresh builds until the tests have decided, or the time is over."""

    def __init__(
        self,
        bench: Bench,
        clock: Clock,
        config: ExperimentConfig,
        screening: Screening,
        watch: Callable[[int, Confirmed], None] = lambda build, confirmed: None,
    ) -> None:
        """Args:
        config: the baseline.
        screening: provides the window length, and the time of the slowest steps.
        watch: called after each build, with its number and the results so far.
        """
        self._bench, self._clock, self._config, self._screening, self._watch = bench, clock, config, screening, watch
        self._random = random.Random(f"{config.seed} builds")
        self._cost = _seconds_of_pair(screening)
        self._equal: list[float] = []
        self.builds = 0
        """Number of builds made."""
        self.in_turn: set[str] = set()
        """Names of the pairs whose two configs are on the device one at a time."""
        self.problems: dict[str, str] = {}
        """Reason why a pair could not be measured, by name."""

    @property
    def noise(self) -> float | None:
        """Standard deviation between builds of the baseline's speed over its own, as a fraction; None if there were too
        few builds."""
        return deviation_between(self._equal)

    def seconds_of(self, pairs: int) -> float:
        """Return the seconds of a build with this number of pairs and A/A, estimated from the builds so far."""
        return self._cost * (pairs + 1 + START_COST)

    def run(
        self,
        together: ExperimentConfig | None,
        alone: Mapping[str, ConfigPair],
        shares: Mapping[str, ExperimentConfig],
        alpha: float,
        *,
        can_cut_back: bool = False,
    ) -> Confirmed:
        """Measure and test the pairs, as far as time allows; the result is empty without time.

        Args:
            together: config with all candidates; compared with the baseline as `TOGETHER`.
            alone: pairs by technique, the most promising first. Most have the baseline as their first config.
            shares: by technique, the config with all candidates but this one; `together` is compared with it.
            alpha: probability that `TOGETHER` is falsely called a gain or a regression.
            can_cut_back: leave time to confirm a smaller combination, without the techniques that add nothing.
        """
        pairs = {TOGETHER: ConfigPair(self._config, together)} if together is not None else {}
        pairs |= {name: each for name, each in alone.items() if name in shares}
        pairs |= {_share_of(name): ConfigPair(each, together) for name, each in shares.items() if together is not None}
        pairs |= {name: each for name, each in alone.items() if name not in shares}
        self._forget_combination()
        with self.keeping_time() if can_cut_back else nullcontext():
            course = self._begin(pairs, alone, alpha, NARROW_BUILDS if can_cut_back else 0)
            if course is None:
                return Confirmed()
            while names := self._next_names(course, course.looks, course.open):
                self._build_again(course, pairs, names)
        while names := self._next_names(course, (*course.looks, *course.narrowing), course.imprecise):
            self._build_again(course, pairs, names)
        return course.confirmed()

    @contextmanager
    def keeping_time(self) -> Iterator[None]:
        """Leave time during the body to confirm one pair afterwards."""
        seconds = LOOKS[0] * self.seconds_of(1)
        self._clock.reserved += seconds
        try:
            yield
        finally:
            self._clock.reserved -= seconds

    def _begin(
        self, pairs: Mapping[str, ConfigPair], alone: Collection[str], alpha: float, narrow_builds: int
    ) -> "_Tests | None":
        """Make the first build of the pairs that there is time for; None without time for a look."""
        names = self._affordable(list(pairs), LOOKS[0])
        if not names:
            return None
        ratios = self._build_and_equal(pairs, names)
        if not (looks := self._affordable_looks(len(names))):
            return None
        narrowing = [look for look in LOOKS if looks[-1] < look <= narrow_builds]
        course = _Tests(names, [name for name in names if name in alone], TOGETHER in pairs, alpha, looks, narrowing)
        course.add(ratios)
        self._watch(self.builds, course.confirmed())
        return course

    def _next_names(self, course: "_Tests", looks: Sequence[int], wanted: Sequence[str]) -> list[str]:
        """Return the wanted names that there is time for until the look after next, else until the next one."""
        until = [look for look in looks if look > course.builds][:2]
        names = (self._affordable(wanted, look - course.builds) for look in reversed(until))
        return next(filter(None, names), [])

    def _build_again(self, course: "_Tests", pairs: Mapping[str, ConfigPair], names: Sequence[str]) -> None:
        course.add(self._build_and_equal(pairs, names))
        self._watch(self.builds, course.confirmed())

    def _forget_combination(self) -> None:
        """Drop the state of all together and of the shares: it belongs to another combination."""
        self.problems = {name: each for name, each in self.problems.items() if "/" not in name}
        self.in_turn = {name for name in self.in_turn if "/" not in name}

    def _affordable(self, names: Sequence[str], builds: int) -> list[str]:
        """Return the names for which there is time in this number of builds, without the least promising ones."""
        fitting = list(names)
        while fitting and not self._clock.has(builds * self.seconds_of(len(fitting))):
            fitting.pop()
        return fitting

    def _affordable_looks(self, pairs: int) -> tuple[int, ...]:
        """Return the looks for which there is time, given the length of the first build. Half of the pairs are likely
        to be decided or dropped early."""
        for fewest in (max(2, ceil(pairs / 2)), 2, 1):
            seconds = self.seconds_of(min(fewest, pairs))
            if looks := tuple(look for look in LOOKS if (look - 1) * seconds <= self._clock.left):
                return looks
        return ()

    def _build_and_equal(self, pairs: Mapping[str, ConfigPair], names: Sequence[str]) -> dict[str, float]:
        """Return the log ratios of one build of some pairs and of A/A."""
        chosen = {name: pairs[name] for name in names}
        ratios = self._build({AA: ConfigPair(self._config, self._config), **chosen})
        self._equal += [ratios[AA]] if AA in ratios else []
        return ratios

    def _build(self, pairs: Mapping[str, ConfigPair]) -> dict[str, float]:
        """Return the log ratios of one build. If it fails, each pair is tried in separate processes while there is
        time. A pair that fails again is not measured any more, except for A/A."""
        self.builds += 1
        found, problem = self._measure(pairs)
        for name, pair in pairs.items() if problem else ():
            if not self._clock.has(self.seconds_of(1)):
                break
            alone, problem = self._measure({name: pair})
            found |= alone
            self.problems |= {name: problem} if problem and name != AA else {}
        return found

    def _measure(self, pairs: Mapping[str, ConfigPair]) -> tuple[dict[str, float], str]:
        """Return the log ratios of a job, and the reason for its failure or an empty string."""
        names = list(pairs)
        self._random.shuffle(names)
        parts: list[TrialWorkerSpec] = []
        comparisons = []
        for name in names:
            places = []
            for config in pairs[name]:
                part = part_of(config)
                if part not in parts:
                    parts.append(part)
                places.append(parts.index(part))
            own = {
                "seed": self._random.randrange(2**31),
                "is_technique_first": self._random.random() < 0.5,
                "in_turn": name in self.in_turn or not self._screening.memory.holds(*pairs[name]),
            }
            self.in_turn |= {name} if own["in_turn"] else set()
            comparisons.append([*places, own])
        rules = {
            "window_seconds": _window_seconds(self._screening),
            "seconds": max(self._screening.longest, self._clock.left / 4 / len(names)),
            "min_pairs": MIN_PAIRS,
            "max_pairs": PAIRS,
        }
        options: dict[str, Any] = {"comparisons": comparisons, "rules": rules}
        slowest = sum(self._screening.fewest_seconds(*pairs[name]) for name in names)
        limit = min(max(self._clock.left, 0.0), slowest + self.seconds_of(len(names))) + self._clock.patience
        begun = self._clock.elapsed
        answer = self._bench.do(Job(BUILD, tuple(parts), options, limit, in_fresh_processes=True))
        if answer.kind == "oom" and len(names) == 1 and names[0] not in self.in_turn:
            self.in_turn.update(names)
            return self._measure(pairs)
        if answer.problem:
            return {}, answer.problem
        self._cost = max(0.8 * self._cost, (self._clock.elapsed - begun) / (len(names) + START_COST))
        measured = zip(names, answer.values["benchmarks"], strict=True)
        return {name: _log_ratio(self._screening.pairs_of(each, *pairs[name])) for name, each in measured}, ""


class _Tests:
    """The two tests of a round, and the shares that are measured with them."""

    def __init__(
        self,
        names: Sequence[str],
        alone: Sequence[str],
        has_together: bool,
        alpha: float,
        looks: Sequence[int],
        narrowing: Sequence[int],
    ) -> None:
        self._order, self.looks, self.narrowing = names, looks, narrowing
        self.builds = 0
        self._alone = SequentialTest(alone, TECHNIQUES_ALPHA, looks)
        self._together = SequentialTest([TOGETHER] if has_together else [], alpha, looks, narrowing)
        self._shares: dict[str, list[float]] = {
            name: [] for name in names if name != TOGETHER and name not in set(alone)
        }
        self._dropped: set[str] = set()

    @property
    def open(self) -> list[str]:
        """Names of the pairs that are worth another build, the most important first."""
        shares = [name for name in self._shares if name not in self._dropped and self._is_open_share(name)]
        wanted = {*self._together.open, *shares, *self._alone.open, *self.imprecise}
        return [name for name in self._order if name in wanted]

    @property
    def imprecise(self) -> list[str]:
        """`TOGETHER` if its interval is still wide, and it gains and will not be cut back."""
        if not self._together.imprecise or self._together.comparison(TOGETHER).verdict != "gain":
            return []
        measured = [ratios for ratios in self._shares.values() if ratios]
        is_kept = all(Share(_share(ratios), len(ratios)).adds_something for ratios in measured)
        return [TOGETHER] if is_kept else []

    def _is_open_share(self, name: str) -> bool:
        """Return True if it is unclear whether the technique adds something; False if all together show no gain."""
        ratios = self._shares[name]
        if len(ratios) < LOOKS[0] or len(ratios) >= SHARE_BUILDS:
            return len(ratios) < LOOKS[0]
        is_given_up = not self._together.open and self._together.comparison(TOGETHER).verdict != "gain"
        return not is_given_up and _share(ratios).low <= 1 <= _share(ratios).high

    def drop(self, name: str) -> None:
        """Stop measuring a pair."""
        self._dropped.add(name)
        for test in (self._together, self._alone):
            test.drop(name)

    def add(self, ratios: Mapping[str, float]) -> None:
        """Add the log ratios of a build, and test after builds for which a look is planned."""
        self.builds += 1
        for name in set(self.open) - set(ratios):
            self.drop(name)  # it failed, or there is no time for it
        for name, each in self._shares.items():
            each += [ratios[name]] if name in ratios else []
        for test in (self._together, self._alone):
            test.add(ratios, ratios.get(AA))
            if self.builds in test.looks:
                test.look(self.builds)

    def confirmed(self) -> Confirmed:
        """Return the results so far, without those that were not measured."""
        together = self._together.comparison(TOGETHER) if self._together.names else None
        techniques = {name: self._alone.comparison(name) for name in self._alone.names}
        return Confirmed(
            together if together is not None and together.builds else None,
            {name: each for name, each in techniques.items() if each.builds},
            {
                name.partition("/")[2]: Share(_share(ratios), len(ratios))
                for name, ratios in self._shares.items()
                if ratios
            },
        )


def seconds_of_build(pairs: int, screening: Screening) -> float:
    """Return the expected seconds of a build with this number of pairs and A/A, before one has been measured."""
    return _seconds_of_pair(screening) * (pairs + 1 + START_COST)


def _seconds_of_pair(screening: Screening) -> float:
    """Estimate the seconds of a pair of configs in a build from the screening, including its fixed cost."""
    return max(2 * PAIRS * _window_seconds(screening) + 1.0, screening.longest * PAIRS / SCREENED_PAIRS / 2)


def _window_seconds(screening: Screening) -> float:
    return min(screening.window_seconds, WINDOW_SECONDS)


def _share_of(name: str) -> str:
    """Return the name of the comparison of all together with all but this technique. No technique name has a slash."""
    return f"share/{name}"


def _share(log_ratios: Sequence[float]) -> Interval:
    return as_ratios(student_interval(np.asarray(log_ratios), SHARE_ERROR, LEAST_DEVIATION))


def shown_name(name: str) -> str:
    """Return the name of a comparison as it is shown to users."""
    kind, _, technique = name.partition("/")
    return {"share": f"all together without {technique}", "all": "all together"}.get(kind, name) if technique else name


def _log_ratio(pairs: Sequence[Pair]) -> float:
    logs = log_ratios([pair.baseline for pair in pairs], [pair.technique for pair in pairs])
    return hodges_lehmann(np.asarray(logs))
