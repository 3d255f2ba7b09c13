"""Ranking of trials: by one metric, by several at once, and over repeated seeds."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, Literal

from paceline.config.constraints import Constraint, broken_by_seeds
from paceline.sweeps.trial import Trial, planned_order

Mode = Literal["min", "max"]
Objective = tuple[str, Mode]
"""A metric, and which way it is better."""

MEASURES: Mapping[str, Mode] = {
    "samples_per_second": "max",
    "peak_memory_bytes": "min",
    "seconds": "min",
    "samples": "min",
    "steps": "min",
}
"""Measures that every trial has in addition to its metrics, and the direction in which each is better."""
_LAST_PARTS: Mapping[str, Mode] = {"loss": "min", "accuracy": "max"}
_ENCODER = json.JSONEncoder(sort_keys=True, default=repr)


@dataclass(frozen=True)
class Spread:
    """A metric over the finished trials of one setting."""

    mean: float
    """NaN without any trial."""
    std: float
    """Sample standard deviation; NaN with fewer than two trials."""
    n: int
    """Trials whose value is finite."""


@dataclass(frozen=True)
class SettingSummary:
    """One setting of the axes and its trials: one for each seed."""

    setting: Mapping[str, Any]
    trials: tuple[Trial, ...]
    finished: tuple[Trial, ...]
    spreads: Mapping[str, Spread]
    """By metric, over the finished trials."""

    @cached_property
    def broken(self) -> list[str]:
        """The constraints of the sweep that it breaks, see `broken_by_seeds`."""
        return broken_by_seeds([trial.violations for trial in self.finished])


def value_of(trial: Trial, metric: str) -> float | None:
    """A metric, or one of `MEASURES`, of a trial; None when it is not there or not finite."""
    own = getattr(trial, metric) if metric in MEASURES else None
    value = own or trial.metrics.get(metric, own)
    return value if value is not None and math.isfinite(value) else None


def with_violations(trial: Trial, constraints: Sequence[Constraint]) -> Trial:
    """A trial that has ended, with the constraints that it breaks. One that did not finish may lack a metric."""
    values = {constraint: value_of(trial, constraint.metric) for constraint in constraints}
    is_finished = trial.state == "finished"
    known = {own.text: own.violation(value) for own, value in values.items() if is_finished or value is not None}
    return replace(trial, violations=known)


def metric_names(trials: Iterable[Trial]) -> list[str]:
    """Every metric that some trial has, in alphabetical order."""
    return sorted({name for trial in trials for name in trial.metrics})


def objective_of(metric: str, objectives: Sequence[Objective]) -> Objective:
    """Return a metric and its direction, from the objectives or from the table of Paceline's own metrics.

    Raises:
        ValueError: the direction is in neither.
    """
    known = {**MEASURES, **dict(objectives)}
    mode = known.get(metric) or _LAST_PARTS.get(metric.rpartition("/")[2])
    if mode is None:
        raise ValueError(
            f"{metric} is not an objective of the sweep, so which way it is better is not known "
            f"(write ({metric!r}, 'min') or ({metric!r}, 'max'))"
        )
    return metric, mode


def aggregate(trials: Sequence[Trial], metrics: Sequence[str]) -> list[SettingSummary]:
    """One summary for each setting, in the order of the trials; the metrics over its finished trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(setting_key(trial), []).append(trial)
    return [summary_of(group, metrics) for group in groups.values()]


def setting_key(trial: Trial) -> str:
    """Return a key that the trials of one setting have in common."""
    return _ENCODER.encode(trial.setting)


def ranked(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[SettingSummary]:
    """The settings with a finished trial whose first objective is finite, best first.

    Those that break a constraint come after all others. A setting with fewer finished seeds than the others comes after
    them: what is left of it may be its luck. Among those with as many, the mean of the first objective decides, then
    those of the further ones, then the order.
    """
    first = objectives[0][0]
    settings = aggregate(sorted(trials, key=planned_order), [metric for metric, _ in objectives])
    usable = [summary for summary in settings if summary.spreads[first].n]
    return sorted(usable, key=lambda summary: rank_of(summary, objectives))


def rank_of(summary: SettingSummary, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Sort key for settings, best first, in the order of `ranked`."""
    return (bool(summary.broken), -_seeds(summary, objectives[0][0]), *_mean_losses(summary, objectives))


def best_setting(trials: Sequence[Trial], objectives: Sequence[Objective]) -> SettingSummary | None:
    """Return the first of `ranked`; None if it is empty, or if each setting violates a constraint."""
    settings = ranked(trials, objectives)
    return settings[0] if settings and not settings[0].broken else None


def best_trial(trials: Sequence[Trial], objectives: Sequence[Objective]) -> Trial | None:
    """The best finished trial by the first objective that keeps all constraints; None without one whose value is
    finite.

    With repeated seeds: the best seed of the best setting.
    """
    best = best_setting(trials, objectives)
    return best_seed(best, objectives) if best is not None else None


def best_seed(summary: SettingSummary, objectives: Sequence[Objective]) -> Trial:
    """The best finished trial of a setting which has one; where some keep all constraints, of these."""
    return min(
        summary.finished, key=lambda trial: (bool(trial.broken), *_losses(trial, objectives), planned_order(trial))
    )


def front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[SettingSummary]:
    """The settings that no other one betters in one objective without being worse in another, best in the first first.

    Only finished trials count in which every objective is finite, and only settings that keep all constraints, with as
    many finished seeds as the most complete one. For a single objective it is just the best setting.
    """
    complete = by_completeness(trials, objectives).complete
    losses = {id(summary): _mean_losses(summary, objectives) for summary in complete}
    found: list[SettingSummary] = []
    # whatever betters a setting comes before it, so that those found so far are enough to compare with
    for summary in sorted(complete, key=lambda summary: losses[id(summary)]):
        if not any(_dominates(losses[id(other)], losses[id(summary)]) for other in found):
            found.append(summary)
    return found[:1] if len(objectives) == 1 else found


@dataclass(frozen=True)
class Comparable:
    """Settings by whether they can be compared in several objectives."""

    complete: list[SettingSummary]
    """Settings that keep all constraints, with the most finished seeds."""
    incomplete: list[SettingSummary]
    """Settings with fewer."""
    infeasible: list[SettingSummary]
    """Settings that break a constraint."""


def by_completeness(trials: Sequence[Trial], objectives: Sequence[Objective]) -> Comparable:
    """The settings of trials in which every objective is finite."""
    names = [metric for metric, _ in objectives]
    settings = aggregate(sorted(_usable(trials, objectives), key=planned_order), names)
    feasible = [(summary, _seeds(summary, names[0])) for summary in settings if not summary.broken]
    most = max((count for _, count in feasible), default=0)
    return Comparable(
        [summary for summary, count in feasible if count == most],
        [summary for summary, count in feasible if count < most],
        [summary for summary in settings if summary.broken],
    )


def pareto(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """The best seed's trial of each setting of the `front`, sorted by the first objective, the best first."""
    return [best_seed(summary, objectives) for summary in front(trials, objectives)]


def _usable(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    return [
        trial
        for trial in trials
        if trial.state == "finished" and all(value_of(trial, metric) is not None for metric, _ in objectives)
    ]


def summary_of(trials: Sequence[Trial], metrics: Sequence[str]) -> SettingSummary:
    """The summary of the trials of one setting, at least one."""
    finished = tuple(trial for trial in trials if trial.state == "finished")
    spreads = {metric: _spread(finished, metric) for metric in metrics}
    return SettingSummary(trials[0].setting, tuple(trials), finished, spreads)


def _spread(trials: Sequence[Trial], metric: str) -> Spread:
    values = [value for trial in trials if (value := value_of(trial, metric)) is not None]
    count = len(values)
    if count < 2:
        return Spread(values[0] if values else math.nan, math.nan, count)
    try:
        mean = math.fsum(values) / count
    except OverflowError:  # values near the largest number, as those of a training about to diverge
        mean = math.fsum(value / count for value in values)
    return Spread(mean, math.dist(values, [mean] * count) / math.sqrt(count - 1), count)


def _seeds(summary: SettingSummary, metric: str) -> int:
    """Different seeds that have a value: a point that a search drew twice is not more certain than another one."""
    valued = [trial for trial in summary.finished if value_of(trial, metric) is not None]
    return len({str(trial.params.get("seed")) for trial in valued})


def _mean_losses(summary: SettingSummary, objectives: Sequence[Objective]) -> tuple[float, ...]:
    return tuple(_loss(summary.spreads[metric].mean, mode) for metric, mode in objectives)


def _losses(trial: Trial, objectives: Sequence[Objective]) -> tuple[float, ...]:
    return tuple(_loss(value_of(trial, metric), mode) for metric, mode in objectives)


def _loss(value: float | None, mode: Mode) -> float:
    """Return the value as a quantity to minimize; infinite without a value."""
    if value is None or math.isnan(value):
        return math.inf
    return value if mode == "min" else -value


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


_Rank = tuple[tuple[float, ...], tuple[int, str]]


class BestSetting:
    """The first of `ranked`, over the trials that have finished until now: O(log n) for each trial."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._metrics = [metric for metric, _ in objectives]
        self._trials: dict[str, dict[str, Trial]] = {}
        """Finished trials by setting, then by trial id."""
        self._ranks: dict[str, _Rank] = {}
        self._heap: list[tuple[_Rank, str]] = []
        """Ranks and settings, outdated ones among them."""

    def add(self, trial: Trial) -> None:
        """Add a trial; only a finished one counts."""
        if trial.state != "finished":
            return
        key = setting_key(trial)
        self._trials.setdefault(key, {})[trial.id] = trial
        summary = self._summary(key)
        if not summary.spreads[self._metrics[0]].n:
            return
        rank = rank_of(summary, self._objectives), planned_order(summary.trials[0])
        if self._ranks.get(key) != rank:
            self._ranks[key] = rank
            heappush(self._heap, (rank, key))

    def summary(self) -> SettingSummary | None:
        """Return the best setting; None until one that breaks no constraint has finished with a value."""
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks[key] == rank:
                best = self._summary(key)
                return None if best.broken else best
            heappop(self._heap)
        return None

    def _summary(self, key: str) -> SettingSummary:
        return summary_of(sorted(self._trials[key].values(), key=planned_order), self._metrics)
