"""Importance of each axis for a sweep's metric (functional ANOVA)."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.space import LogUniform, Range
from paceline.config.sweep import SweepConfig
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.trial import Trial, axis_keys

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_SETTINGS = 6
"""With fewer, no share can be distinguished from chance."""
MOST_SETTINGS = 500
"""The best of more are left as they are; of the others, evenly chosen ones are enough."""
TREES = 32
DEPTH = 6
"""Together these keep 200 settings below a second."""
LOG_FROM = 10.0
"""Positive numbers of a list that differ by this factor are compared by their logarithms."""
FAR_OFF = 3.0
"""Values so many quartile distances beyond the median count as just so bad: one that diverged would be all there is."""


def varied_axes(trials: Sequence[Trial]) -> list[str]:
    """The axes that have at least two values among the trials, in the order in which they come up."""
    keys = axis_keys(trials)
    return [key for key in keys if len({_same(trial.params.get(key)) for trial in trials}) > 1]


def importances(section: SweepConfig, trials: Sequence[Trial], objective: Objective) -> dict[str, float]:
    """The share of the objective's variation between settings that each axis accounts for, 0 to 1, largest first.

    By Optuna's fANOVA over the settings' means; the shares add up to 1, interactions are split among their axes. Empty
    with fewer than two axes or `LEAST_SETTINGS` finished settings, or where all have the same result. The first call in
    a process imports scikit-learn, which takes a second or two.
    """
    settings = ranking.ranked([trial for trial in trials if trial.state == "finished"], [objective])
    axes = varied_axes([summary.trials[0] for summary in settings])
    axes = [axis for axis in axes if all(axis in summary.setting for summary in settings)]
    values = [summary.spreads[objective[0]].mean for summary in settings]
    if len(axes) < 2 or len(settings) < LEAST_SETTINGS or min(values) == max(values):
        return {}
    chosen = np.unique(np.linspace(0, len(settings) - 1, min(len(settings), MOST_SETTINGS)).astype(int))
    points = [settings[index].setting for index in chosen]
    return _fanova(section, points, axes, _without_outliers([values[index] for index in chosen]))


def warm_up() -> None:
    """Import what `importances` needs, so that it need not wait for that later."""
    from optuna.importance import FanovaImportanceEvaluator

    FanovaImportanceEvaluator(n_trees=1)


def _fanova(
    section: SweepConfig, settings: Sequence[Mapping[str, Any]], axes: Sequence[str], values: Sequence[float]
) -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    distributions = {axis: _distribution(section, axis, [setting[axis] for setting in settings]) for axis in axes}
    trials = [
        optuna.trial.create_trial(
            params={axis: _param(setting[axis], distributions[axis]) for axis in axes},
            distributions=dict(distributions),
            value=value,
        )
        for setting, value in zip(settings, values, strict=True)
    ]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it logs every study
    try:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.add_trials(trials)
        evaluator = FanovaImportanceEvaluator(n_trees=TREES, max_depth=DEPTH, seed=0)
        found = get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return {axis: float(share) for axis, share in found.items()}


def _distribution(section: SweepConfig, axis: str, values: Sequence[Any]) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if not all(labels.is_number(value) for value in values):
        return CategoricalDistribution(list(dict.fromkeys(map(_same, values))))
    low, high = float(min(values)), float(max(values))
    return FloatDistribution(low, high, log=is_log(section, axis, values))


def is_log(section: SweepConfig, axis: str, values: Sequence[Any]) -> bool:
    """Return True if the numbers of an axis are to be compared by their logarithms: as drawn, or as a list spreads."""
    drawn_from = section.space.get(axis)
    if isinstance(drawn_from, Range):
        return isinstance(drawn_from, LogUniform)
    low, high = min(values), max(values)
    return bool(low > 0 and high / low >= LOG_FROM)


def _param(value: Any, distribution: "BaseDistribution") -> Any:
    from optuna.distributions import FloatDistribution

    return float(value) if isinstance(distribution, FloatDistribution) else _same(value)


def _same(value: Any) -> str:
    """Return a key that equal values have in common."""
    return json.dumps(float(value) if labels.is_number(value) else value, sort_keys=True, default=repr)


def _without_outliers(values: Sequence[float]) -> list[float]:
    first, middle, third = np.percentile(values, [25, 50, 75])
    if first == third:
        return list(values)
    reach = FAR_OFF * (third - first)
    return [float(value) for value in np.clip(values, middle - reach, middle + reach)]
