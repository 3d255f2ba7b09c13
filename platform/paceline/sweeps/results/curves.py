"""The metrics of a sweep's trials over the samples that they have seen: one curve for each setting, over its seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from paceline.config.experiment import ExperimentConfig
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trial import Trial, axis_keys, planned_order
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
Histories = Mapping[str, Sequence[MetricPoint]]
"""By the id of a trial, its points."""

MOST_POINTS = 200
"""Points of a curve; longer ones are made of means over neighbours."""
MOST_PANELS = 2
MOST_CURVES = 200
"""Settings whose points are read: the best ones, and of the others as many, evenly chosen."""


@dataclass(frozen=True)
class Curve:
    """One metric of one setting: what its seeds have in common."""

    name: str
    """The setting in a few words, as far as it differs from the others."""
    x: Values
    """Training samples seen, or optimizer steps where nobody knows the samples of a step; ascending."""
    mean: Values
    """Over the seeds."""
    low: Values
    high: Values
    seeds: int
    place: int | None
    """Among the settings, 1 for the best; None for one that has not finished with a value."""


def keys_of(objectives: Sequence[Objective]) -> list[str]:
    """The metrics that curves may be drawn of, the most telling ones first."""
    own = [metric for metric, _ in objectives if metric not in ranking.MEASURES]
    return list(dict.fromkeys([metrics.TRAIN_LOSS, *own, metrics.VAL_LOSS]))


def panels(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective], histories: Histories
) -> dict[str, list[Curve]]:
    """The curves of up to two metrics, those of the best settings first; metrics that nobody has logged are left out.

    Args:
        config: the sweep's own.
        trials: those of the sweep.
        objectives: its metrics, which rank the settings.
        histories: a trial that is missing has no curve.
    """
    found: dict[str, list[Curve]] = {}
    for key in keys_of(objectives):
        if curves := curves_of(config, trials, objectives, histories, key):
            found[key] = curves
        if len(found) == MOST_PANELS:
            break
    return found


def has_samples(config: ExperimentConfig, trials: Sequence[Trial]) -> bool:
    """Return True if curves are over samples; otherwise they are over steps."""
    return any(_samples_per_step(config, trial) for trial in trials)


def curves_of(
    config: ExperimentConfig,
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    histories: Histories,
    key: str,
) -> list[Curve]:
    """One metric's curves, one for each setting that has logged it, those of the best settings first."""
    places = places_of(trials, objectives)
    names = labels.short_names(axis_keys(trials))
    known = [ratio for trial in trials if (ratio := _samples_per_step(config, trial))]
    usual = median(known) if known else 1.0
    curves = []
    for summary in _chosen(ranking.aggregate(sorted(trials, key=planned_order), []), places):
        # what was pruned or failed ends earlier, and would let the mean jump where it does
        chosen = summary.finished or summary.trials
        lines = [_line(histories, trial, key, _samples_per_step(config, trial) or usual) for trial in chosen]
        if lines := [line for line in lines if line is not None]:
            name = labels.setting_text(summary.setting, names) or "as configured"
            name += " (infeasible)" if summary.broken else ""
            curves.append(_curve(name, lines, places.get(summary.trials[0].id)))
    return sorted(curves, key=lambda curve: curve.place or math.inf)


def places_of(trials: Sequence[Trial], objectives: Sequence[Objective]) -> dict[str, int]:
    """By the id of a trial, the place of its setting in the ranking: 1 for the best. Pictures number settings by it."""
    ranked = enumerate(ranking.ranked(trials, objectives), 1)
    return {trial.id: place for place, summary in ranked for trial in summary.trials}


def _chosen(settings: Sequence[SettingSummary], places: Mapping[str, int]) -> list[SettingSummary]:
    """As many settings as a picture can hold, the best half of them in any case."""
    if len(settings) <= MOST_CURVES:
        return list(settings)
    best_first = sorted(settings, key=lambda each: places.get(each.trials[0].id, math.inf))
    rest = best_first[MOST_CURVES // 2 :]
    return [*best_first[: MOST_CURVES // 2], *rest[:: -(-len(rest) // (MOST_CURVES // 2))]]


def _samples_per_step(config: ExperimentConfig, trial: Trial) -> float | None:
    """Return the samples of an optimizer step; None where that is not known. Settings may differ in it."""
    if trial.state in ("finished", "pruned") and trial.steps and trial.samples:
        return trial.samples / trial.steps
    given = trial.params.get("data.global_batch_size", config.data.global_batch_size)
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) and given > 0 else None


def _line(histories: Histories, trial: Trial, key: str, samples: float) -> tuple[Values, Values] | None:
    points = [point for point in histories.get(trial.id, ()) if point.key == key and math.isfinite(point.value)]
    if not points:
        return None
    points.sort(key=lambda point: point.step)
    return np.array([point.step * samples for point in points]), np.array([point.value for point in points])


def _curve(name: str, lines: Sequence[tuple[Values, Values]], place: int | None) -> Curve:
    x = lines[0][0]
    if all(np.array_equal(other, x) for other, _ in lines[1:]):
        values = np.stack([line for _, line in lines])
    else:
        x = _common(lines)
        values = np.stack([np.interp(x, own, line) for own, line in lines])
    x, mean, low, high = (_thinned(each) for each in (x, values.mean(0), values.min(0), values.max(0)))
    return Curve(name, x, mean, low, high, len(lines), place)


def _common(lines: Sequence[tuple[Values, Values]]) -> Values:
    """Places at which all seeds have a value."""
    start, end = max(own[0] for own, _ in lines), min(own[-1] for own, _ in lines)
    count = min(MOST_POINTS, max(len(own) for own, _ in lines))
    return np.linspace(start, max(start, end), count)


def _thinned(values: Values) -> Values:
    """The means over neighbours where there are too many points."""
    if len(values) <= MOST_POINTS:
        return values
    starts = np.arange(MOST_POINTS) * len(values) // MOST_POINTS
    counts = np.diff(np.append(starts, len(values)))
    return np.asarray(np.add.reduceat(values, starts) / counts, dtype=np.float64)
