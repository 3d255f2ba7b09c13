"""The passes of an exhaustive search: each combination once, the best of them in duels, and trainings to the end."""

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from exhaustive_axes import Combination
from exhaustive_journal import Journal, Scanned
from measuring import Interval, interval, over_launches, ratios

from paceline.errors import RunFailed
from paceline.study.tuneup.bench import Bench
from paceline.study.tuneup.jobs import Job, part_of
from paceline.study.tuneup.outcome import Quality
from paceline.study.tuneup.qualities import Trainings
from paceline.study.tuneup.ring import pairs_of

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig
    from paceline.study.tuneup.duel import Pair
    from paceline.study.tuneup.facts import Facts

WINDOW_SECONDS = 0.5
"""Of each side, in turns of some 30 ms."""
PAIRS_OF_COMPILED = 2
"""Of a compiled combination the better one of so many counts: in one of them a batch of another size may be compiled,
the last one of an epoch."""
MOST_SEEDS = 10
"""With so many seeds at the most are two configs compared that fewer do not tell apart."""
SEEDS_MORE = 2
TRAINING_SECONDS = 1e6
"""After so long a training is ended: never."""

Say = Callable[[str], None]


class Finalist(NamedTuple):
    """One of the fastest of the scan, against the recommended config."""

    name: str
    share: Interval
    """The recommended config's speed over this one's: below 1 this one is faster."""
    problem: str = ""


class Best(NamedTuple):
    """The fastest combination that comes out as well as the recommended config."""

    name: str
    is_recommended: bool
    """Whether it is the recommended config itself, and its share so a measurement of the noise."""
    share: Interval
    """The recommended config's speed over its, measured anew in duels that did not choose it."""
    quality: Quality
    rejected: dict[str, Quality]
    """Those that were faster, and are not known to come out as well."""


def look(bench: Bench, config: "ExperimentConfig") -> "Facts":
    """What decides which techniques apply.

    Raises:
        RunFailed: the config cannot be built.
    """
    from paceline.study.tuneup.facts import Facts

    answer = bench.do(Job("look", (part_of(config),)))
    if answer.problem:
        raise RunFailed(f"the config cannot be built: {answer.problem}")
    return Facts(**answer.values)


def scan(
    bench: Bench,
    config: "ExperimentConfig",
    combinations: Sequence[Combination],
    journal: Journal,
    seconds: float,
    say: Say,
    from_cache: bool = False,
) -> bool:
    """A duel for each combination that has had none, in the order given; returns whether all have had one.

    Args:
        seconds: after so many, no further one begins, but one is measured in any case.
        from_cache: what is compiled is compiled beforehand, so that its start-up is that of one whose like was
            compiled before.
    """
    by_name = {each.name: each.config for each in combinations}
    begun = time.monotonic()
    for number, name in enumerate(journal.left(list(by_name))):
        if number and time.monotonic() - begun > seconds:
            return False
        if from_cache and _is_compiled(by_name[name]):
            _duel(bench, config, by_name[name], 1, seed=number)
        scanned = _scanned(bench, config, name, by_name[name], seed=number)
        journal.add(scanned)
        what = scanned.problem or f"{scanned.speedup:.2f} x, {scanned.took_seconds:.1f} s"
        say(f"{len(journal.scanned)} of {len(by_name)}: {name}: {what}")
    return True


def compiled_last(combinations: Sequence[Combination]) -> list[Combination]:
    """In the same order otherwise."""
    return sorted(combinations, key=lambda each: _is_compiled(each.config))


def _is_compiled(config: "ExperimentConfig") -> bool:
    return bool(config.trainer.compile != "none")


def _scanned(bench: Bench, config: "ExperimentConfig", name: str, changed: "ExperimentConfig", seed: int) -> Scanned:
    begun = time.monotonic()
    count = PAIRS_OF_COMPILED if _is_compiled(changed) else 1
    pairs, build_seconds, problem = _duel(bench, config, changed, count, seed)
    took = time.monotonic() - begun
    if problem:
        return Scanned(name, took_seconds=took, problem=problem)
    best = max(pairs, key=lambda pair: pair.baseline / pair.arm)
    return Scanned(name, best.baseline, best.arm, build_seconds, took)


def _duel(
    bench: Bench, first: "ExperimentConfig", second: "ExperimentConfig", pairs: int, seed: int
) -> tuple[list["Pair"], float, str]:
    """Pairs of windows, the second one's start-up in seconds, and why there are none."""
    options = {"window_seconds": WINDOW_SECONDS, "min_pairs": pairs, "max_pairs": pairs, "seed": seed}
    answer = bench.do(Job("duel", (part_of(first), part_of(second)), options))
    if answer.problem:
        return [], 0.0, answer.problem
    return pairs_of(answer.values), answer.values["build_seconds"], ""


class Final:
    """The best of the scan against the recommended config."""

    def __init__(self, bench: Bench, recommended: "ExperimentConfig", trainings: Trainings, say: Say) -> None:
        self._bench, self._recommended, self._trainings, self._say = bench, recommended, trainings, say
        self.finalists: list[Finalist] = []
        """All that have met the recommended config."""

    def find_best(self, ranked: Sequence[Combination], at_once: int, pairs: int, duels: int) -> Best | None:
        """The fastest that comes out as well; None when there is none.

        Args:
            ranked: the fastest of the scan first.
            at_once: how many meet the recommended config before the fastest of them are trained.
            pairs: of windows, in a duel.
            duels: which the best one then fights anew, each in a training begun anew.
        """
        rejected: dict[str, Quality] = {}
        for start in range(0, len(ranked), at_once):
            group = {each.name: each.config for each in ranked[start : start + at_once]}
            found = [self._meet(name, config, pairs) for name, config in group.items()]
            self.finalists += found
            for each in sorted((each for each in found if not each.problem), key=lambda each: each.share.value):
                is_same = same_training(group[each.name], self._recommended)
                quality = Quality("same") if is_same else self._quality_of(each.name, group[each.name])
                if quality.is_fine:
                    share = self._share(group[each.name], pairs, duels)
                    return Best(each.name, is_same, share, quality, rejected)
                rejected[each.name] = quality
        return None

    def _meet(self, name: str, config: "ExperimentConfig", pairs: int) -> Finalist:
        found, _, problem = _duel(self._bench, self._recommended, config, pairs, seed=len(name))
        if problem:
            return Finalist(name, Interval(0.0, 0.0, 0.0), problem)
        share = interval(shares(found))
        self._say(f"final: the recommended config has {share.text()} of the speed of {name}")
        return Finalist(name, share)

    def _quality_of(self, name: str, config: "ExperimentConfig") -> Quality:
        """Over more seeds as long as they decide nothing."""
        while True:
            if not self._trainings.train(self._recommended):
                raise RunFailed(f"the recommended config cannot be trained: {self._trainings.problem}")
            if not self._trainings.train(config):
                self._say(f"final: {name} cannot be trained: {self._trainings.problem}")
                return Quality("not measured")
            quality = self._trainings.compare(self._recommended, config)
            self._say(f"final: {name}: {self._trainings.metric} {quality.verdict} over {quality.seeds} seeds")
            seeds = self._trainings.seeds
            if quality.is_fine or quality.verdict == "worse" or len(seeds) >= MOST_SEEDS:
                return quality
            seeds += range(seeds[-1] + 1, seeds[-1] + 1 + SEEDS_MORE)

    def _share(self, config: "ExperimentConfig", pairs: int, duels: int) -> Interval:
        found = []
        for number in range(duels):
            each, _, problem = _duel(self._bench, self._recommended, config, pairs, seed=1000 + number)
            if problem:
                raise RunFailed(f"the best combination cannot be measured again: {problem}")
            found.append(shares(each))
        return over_launches(found)


def shares(pairs: Sequence["Pair"]) -> list[float]:
    """The first one's speed over the second one's."""
    return ratios([pair.arm for pair in pairs], [pair.baseline for pair in pairs])


def same_training(first: "ExperimentConfig", second: "ExperimentConfig") -> bool:
    """Whether two configs differ in nothing that is done."""
    one, other = (each.with_overrides({"name": "same", "tuneup": None, "sweep": None}) for each in (first, second))
    return bool(one == other)


class Check(NamedTuple):
    """Whether trainings take as long as is computed from speed and start-up."""

    names: list[str]
    computed_seconds: float
    """Of all of them together."""
    seconds: float
    """How long they took from the first line to the last, evaluation included."""

    @property
    def factor(self) -> float:
        """What the computed time is to be taken times, as far as these tell; 1 where none could be trained."""
        return self.seconds / self.computed_seconds if self.names else 1.0


def check_computed(
    bench: Bench, combinations: Sequence[Combination], computed: dict[str, float], names: set[str], count: int
) -> Check:
    """Train some combinations to the end, drawn at random of those that need not be compiled anew.

    Args:
        computed: seconds by name.
        names: those to draw from.
    """
    by_name = {each.name: each.config for each in combinations}
    drawn = random.Random(0).sample(sorted(names), min(count, len(names)))
    answers: dict[str, dict[str, Any]] = {}
    for name in drawn:
        answer = bench.do(Job("train", (part_of(by_name[name]),), {"seconds": TRAINING_SECONDS}))
        if not answer.problem:
            answers[name] = dict(answer.values)
    took = sum(each["wall_seconds"] for each in answers.values())
    return Check(list(answers), sum(computed[name] for name in answers), took)
