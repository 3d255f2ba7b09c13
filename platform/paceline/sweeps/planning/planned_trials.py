"""Planned trials: made from the sweep's space, each checked as a whole config before anything runs."""

import math
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.overrides import ConfigWarning
from paceline.config.space import meaning
from paceline.config.sweep import SweepConfig
from paceline.errors import ConfigError, Problem
from paceline.sweeps.planning.params_checks import FailingParams, ParamsCheck, check_axes, refusal
from paceline.sweeps.planning.valley import valley_settings
from paceline.sweeps.trial import PlannedTrial, Trial

Setting = dict[str, Any]
"""Axis to value."""


NO_VALUE = object()
"""In place of a value, which may be None."""


class TrialNumbers:
    """Numbers of trials in the order in which the sweep, and then each of its extensions, has asked for them.

    An extension adds trials, seeds, or both. The trials that were there keep their numbers, and the new ones follow,
    trial by trial.

    Args:
        sizes: how many trials and how many seeds of each the sweep had at first, and after each extension.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        for planned_trials, seeds in sizes:
            for place in ((planned, seed) for planned in range(planned_trials) for seed in range(seeds)):
                self._numbers.setdefault(place, len(self._numbers))
        self._places = list(self._numbers)

    def id_of(self, planned: int, seed: int) -> str:
        """Return the id of a trial, such as `0007`."""
        return f"{self._numbers[planned, seed]:04d}"

    def place_of(self, trial_id: str) -> tuple[int, int]:
        """Return the number of the trial, and that of the seed, that a trial is for."""
        return self._places[int(trial_id)]


@dataclass(frozen=True)
class PlannedTrials:
    """The trials of a sweep, and those that it passes over."""

    planned_trials: list[PlannedTrial]
    """In the order in which they are to begin; none with `search: optuna`, which chooses them as it goes."""
    skipped: list[Trial]
    """Trials that are not a valid config, with the reason; numbered together with the others."""

    def without(self, ids: Container[str]) -> "PlannedTrials":
        """Return the trials without these."""
        planned_trials = [planned for planned in self.planned_trials if planned.id not in ids]
        return PlannedTrials(planned_trials, [trial for trial in self.skipped if trial.id not in ids])


def section_of(config: ExperimentConfig) -> SweepConfig:
    """The config's `sweep` section.

    Raises:
        ConfigError: there is none.
    """
    if config.sweep is None:
        hint = "add one, such as sweep: {space: {optimizer.lr: [0.01, 0.1]}}"
        raise ConfigError([Problem("sweep", "there is no sweep section", "sweep", hint=hint)])
    return config.sweep


def trial_count(section: SweepConfig) -> int:
    """Number of trials of a sweep, those included that are to be skipped; without a look at any of them."""
    planned_trials = section.num_samples
    if section.search == "grid" or planned_trials is None:
        planned_trials = math.prod(len(values) for values in section.lists.values())
    return planned_trials * section.seeds


def plan_trials(config: ExperimentConfig, earlier: Sequence[SweepConfig] = ()) -> PlannedTrials:
    """All trials of a config's sweep, each of them checked.

    A grid's come in the order of the axes as written, the first one slowest and the seeds fastest, but with those that
    need the same workers side by side. Drawn ones follow from the config's `seed`: more of them begin with the same.
    With optuna there are none yet; each axis is then checked by itself. The trials that an extension adds come last.

    Args:
        earlier: the sections `sweep` that the sweep had before its extensions, the first one first.

    Warns, once each, of keys that are dropped where an axis switches a component.

    Raises:
        ConfigError: the config has no sweep; or, unless `sweep.invalid` is `skip`, some trials are not a valid config;
            or none is.
    """
    sweep = section_of(config)
    check = ParamsCheck(config)
    with _each_warning_once():
        if sweep.search == "optuna":
            check_axes(check, sweep)
            return PlannedTrials([], [])
        settings, sizes = _settings(config, [*earlier, sweep])
        failing = [FailingParams(setting, check.problems(setting)) for setting in settings]
    invalid = [each for each in failing if each.problems]
    if invalid and (sweep.invalid == "refuse" or len(invalid) == len(failing)):
        raise refusal(invalid, may_skip=len(invalid) < len(failing))
    return _numbered(failing, _seeds(config, sweep), TrialNumbers(sizes))


def trial_config(config: ExperimentConfig, params: Mapping[str, Any]) -> ExperimentConfig:
    """The config of one trial: the sweep's own without its section `sweep`, with a trial's params.

    Does not warn of keys that go with a component: `plan_trials` has said so.

    Raises:
        ConfigError: it is not a valid config.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        # without the space, which may be long, before all of it is copied
        return config.model_copy(update={"sweep": None}).with_overrides(params)


def _settings(config: ExperimentConfig, sections: Sequence[SweepConfig]) -> tuple[list[Setting], list[tuple[int, int]]]:
    """The settings of a sweep and of its extensions; and after each how many there are, and how many seeds of each."""
    settings: list[Setting] = []
    sizes = []
    for section in sections:
        for axis in [name for name in section.space if settings and name not in settings[0]]:
            value = own_value(config, axis, section.lists[axis])
            settings = [{**setting, axis: value} for setting in settings]
        if section.search == "grid":
            known = {meaning(setting) for setting in settings}
            settings += [setting for setting in _grid(section) if meaning(setting) not in known]
        elif section.search == "scale":
            settings += valley_settings(config, section)[len(settings) :]
        else:
            settings += _drawn(section, config.seed)[len(settings) :]
        sizes.append((len(settings), section.seeds))
    return settings, sizes


def own_value(config: ExperimentConfig, axis: str, values: Sequence[Any]) -> Any:
    """The one of an axis' values that the config has without the axis; `NO_VALUE` where it is none of them."""
    plain = trial_config(config, {}).model_dump()
    for value in values:
        with suppress(ConfigError):
            if trial_config(config, {axis: value}).model_dump() == plain:
                return value
    return NO_VALUE


def _grid(sweep: SweepConfig) -> list[Setting]:
    settings = [dict(zip(sweep.lists, values, strict=True)) for values in product(*sweep.lists.values())]
    groups: dict[str, int] = {}
    for setting in settings:
        groups.setdefault(_group(setting), len(groups))
    return sorted(settings, key=lambda setting: groups[_group(setting)])


def _group(setting: Setting) -> str:
    """Stands for the workers that a setting needs."""
    return repr([value for axis, value in setting.items() if axis.partition(".")[0] == "scaling"])


def _drawn(sweep: SweepConfig, seed: int) -> list[Setting]:
    rng = Random(seed)
    return [
        {name: rng.choice(axis) if isinstance(axis, list) else axis.sample(rng) for name, axis in sweep.space.items()}
        for _ in range(sweep.num_samples or 0)
    ]


def _seeds(config: ExperimentConfig, sweep: SweepConfig) -> list[Setting]:
    if sweep.seeds == 1:
        return [{}]
    return [{"seed": config.seed + number} for number in range(sweep.seeds)]


def _numbered(checked: Sequence[FailingParams], seeds: list[Setting], numbers: TrialNumbers) -> PlannedTrials:
    made = PlannedTrials([], [])
    places = ((planned, seed) for planned in range(len(checked)) for seed in range(len(seeds)))
    for trial_id, planned, seed in sorted((numbers.id_of(*place), *place) for place in places):
        one, params = checked[planned], {**checked[planned].setting, **seeds[seed]}
        if one.problems:
            made.skipped.append(Trial(trial_id, params, state="skipped", reason=one.reason()))
        else:
            made.planned_trials.append(PlannedTrial(trial_id, params))
    return made


@contextmanager
def _each_warning_once() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        yield
    told = dict.fromkeys((warning.category, str(warning.message)) for warning in caught)
    for category, text in told:
        warnings.warn(text, category, stacklevel=4)  # the line that called plan_trials
