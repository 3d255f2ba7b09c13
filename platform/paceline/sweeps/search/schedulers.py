"""Tune's schedulers, built from a sweep's config and given the results of earlier launches."""

import logging
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

from paceline._compat.ray import (
    PBTHooks,
    add_asha_result,
    forget_ended_trials,
    median_results,
    rename_asha_trial,
    rename_median_trial,
)
from paceline.config.experiment import ExperimentConfig
from paceline.config.space import LogUniform, Number, QUniform, RandInt, Range, Uniform
from paceline.config.sweep import SweepConfig
from paceline.engine.rungs import ROUNDING
from paceline.sweeps.coordinator.running_trial import end_values
from paceline.sweeps.planning.params_checks import ParamsCheck
from paceline.sweeps.search.tune_trials import TRIAL, AxisPlaces, id_of, planned_trial_of, tune_config
from paceline.sweeps.sweep_log import SweepHistory
from paceline.sweeps.trial import PlannedTrial


def build_scheduler(config: ExperimentConfig, first_rung: float, length: float, history: SweepHistory) -> Any:
    """The scheduler of a sweep, in the state that the trials so far have brought it to.

    Args:
        first_rung: in `budget_unit`.
        length: of the longest trial, in the same unit; infinite when that is not known.
    """
    sweep = config.sweep
    assert sweep is not None
    metric, mode = sweep.objectives[0]
    common = {"time_attr": sweep.budget_unit, "metric": metric, "mode": mode}
    # a rung of the workers is one for Tune, too, however the two round it
    lowest = first_rung * (1 - ROUNDING)
    scheduler: Any
    if sweep.scheduler == "none":
        return LiveFIFO()
    if sweep.scheduler == "asha":
        longest = max(first_rung, length if math.isfinite(length) else first_rung * sweep.rung_factor**12)
        scheduler = ResumableASHA(
            **common, grace_period=lowest, max_t=longest, reduction_factor=sweep.rung_factor, stop_last_trials=False
        )
    elif sweep.scheduler == "median":
        scheduler = ResumableMedian(**common, grace_period=lowest)
    else:
        mutations = {name: _mutation(axis) for name, axis in sweep.space.items()}
        scheduler = CheckedPBT(
            config,
            **common,
            # two results are at least half of the distance between two rungs apart, whatever the size of a batch
            perturbation_interval=lowest / 2,
            hyperparam_mutations={TRIAL: {"values": mutations}},
            log_config=False,
            require_attrs=False,
        )
    scheduler.replay(past_results(history, sweep))
    return scheduler


@dataclass(frozen=True)
class Past:
    """Result of a trial that an earlier launch gave a scheduler."""

    trial_id: str
    """Ours, such as `0007`."""
    result: dict[str, Any]
    is_last: bool = False
    """True if the trial has ended with it."""


def past_results(history: SweepHistory, sweep: SweepConfig) -> list[Past]:
    """The results of the trials so far, as Tune had them; those at their ends come last."""
    missing = {sweep.budget_unit: 0.0, **dict.fromkeys(sweep.metrics, math.nan)}
    results = [Past(trial_id, {**missing, **values}) for trial_id, values in history.decided]
    for trial in history.ended.values():
        if trial.state not in ("skipped", "predicted_oom"):
            values = end_values(trial, history.last_rungs.get(trial.id, {}))
            results.append(Past(trial.id, {**missing, **values}, is_last=True))
    return results


def _own_id(trial: Any) -> str:
    """Our id of one of Tune's trials."""
    return id_of(trial.config)


@dataclass(frozen=True)
class _PastTrial:
    """A trial of an earlier launch, as far as schedulers look at it."""

    trial_id: str


class LiveTrialChoice:
    """Put before one of Tune's schedulers among the bases: it chooses among the trials that have not ended, and has
    Tune forget those that have.

    By itself it looks at all trials of the sweep twice, at each of Tune's steps.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the first trial, by its id, that waits to begin, else the first one that was paused, else None."""
        forget_ended_trials(tune_controller)
        statuses = (Trial.PENDING, Trial.PAUSED)
        live = [trial for trial in tune_controller.get_live_trials() if trial.status in statuses]

        def place(trial: Any) -> tuple[int, int, str]:
            own = _own_id(trial)
            return statuses.index(trial.status), len(own), own

        return min(live, key=place, default=None)


class LiveFIFO(LiveTrialChoice, FIFOScheduler):  # type: ignore[misc]
    """One trial after the other, each to its end."""


class ResumableASHA(LiveTrialChoice, AsyncHyperBandScheduler):  # type: ignore[misc]
    """Asynchronous successive halving (Li et al. 2018, arXiv:1810.05934), whose rungs can be filled again."""

    def replay(self, past: Sequence[Past]) -> None:
        """Fill the rungs with what was reported before."""
        for each in past:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a rung of NaN has no quantile
                add_asha_result(self, _PastTrial(each.trial_id), each.result)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        rename_asha_trial(self, _own_id(trial), trial.trial_id)


class ResumableMedian(LiveTrialChoice, MedianStoppingRule):  # type: ignore[misc]
    """The median stopping rule of Vizier (Golovin et al. 2017), which can be given trials that it did not see."""

    def replay(self, past: Sequence[Past]) -> None:
        """Take in what was reported before."""
        for each in past:
            median_results(self)[_PastTrial(each.trial_id)].append(each.result)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        results = median_results(self)
        before = results.pop(_PastTrial(_own_id(trial)), None)
        if before is not None:
            results[trial] = before

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        rename_median_trial(self, trial, _PastTrial(_own_id(trial)))  # Tune's own would stay in memory


class OwnDraws:
    """While the body runs, Python's and numpy's global generators draw from a sequence of their own."""

    def __init__(self, seed: int) -> None:
        self._own: Any = Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = random.getstate(), np.random.get_state()
        self._set(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = random.getstate(), np.random.get_state()
        self._set(self._outer)

    def _set(self, states: Any) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])


class CheckedPBT(PBTHooks, PopulationBasedTraining):  # type: ignore[misc]
    """Population based training (Jaderberg et al. 2017, arXiv:1711.09846) that proposes valid configs only, and values
    within their axes."""

    def __init__(self, base: ExperimentConfig, **options: Any) -> None:
        super().__init__(**options)
        logging.getLogger("ray.tune.schedulers.pbt").setLevel(logging.WARNING)  # it tells each of its steps
        assert base.sweep is not None
        self._sweep = base.sweep
        self._check, self._places = ParamsCheck(base), AxisPlaces(base.sweep)
        self._draws = OwnDraws(base.seed)
        self._past: dict[str, list[dict[str, Any]]] = {}

    def replay(self, past: Sequence[Past]) -> None:
        """Take in what was reported before. Trials are exploited again once they have saved their state again."""
        for each in past:
            if not each.is_last:
                self._past.setdefault(each.trial_id, []).append(each.result)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        self.replay_results(trial, self._past.pop(_own_id(trial), ()))

    def around_exploit(self, exploit: Callable[[], None]) -> None:
        """Draw from generators of its own."""
        with self._draws:
            exploit()

    def change_config(
        self, trial: Any, source: Any, config: dict[str, Any], operations: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keep the proposal within its axes; take the values of `source` as they are where it is not valid."""
        params = dict(planned_trial_of(config, self._sweep).params)
        for name, axis in self._sweep.ranges.items():
            params[name] = _within(axis, params[name])
        if self._check.problems(params):  # not together with the others: continue with the values that work
            params, operations = dict(planned_trial_of(source.config, self._sweep).params), {}
        # what is taken over are the values, not who it is
        return {**config, **tune_config(PlannedTrial(_own_id(trial), params), self._places)}, operations


def _within(axis: Range, value: Any) -> Number:
    """The number of an axis that is nearest to a value."""
    low, high = axis.bounds
    if isinstance(axis, QUniform):
        number = low + round((value - low) / axis.step) * axis.step
        value = number if axis.is_whole and isinstance(axis.step, int) else float(f"{number:.14g}")
    nearest = min(max(value, low), high)
    return int(nearest) if isinstance(axis, RandInt) or isinstance(nearest, int) else float(nearest)


def _mutation(axis: Any) -> Any:
    """An axis in the words of Tune's PBT; a list by the places of its values."""
    from ray import tune

    if isinstance(axis, list):
        return list(range(len(axis)))
    assert isinstance(axis, Range)
    low, high = axis.bounds
    if isinstance(axis, LogUniform):
        return tune.loguniform(low, high)
    if isinstance(axis, RandInt):
        return tune.randint(int(low), int(high) + 1)
    if isinstance(axis, QUniform):
        return tune.quniform(low, high, axis.step)
    assert isinstance(axis, Uniform)
    return tune.uniform(low, high)
