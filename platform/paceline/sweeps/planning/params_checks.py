"""Checks that each trial's params make a valid config, and the error that lists those that do not."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from paceline.config.components import COMPONENT_LISTS, ROOMS, components_in
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.overrides import SELECTORS
from paceline.config.sweep import SweepConfig
from paceline.config.sweep_checks import axis_key
from paceline.data.base import DataConfig
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.sweeps.results.labels import setting_text

VALUE_CODES = (
    *("bad-choice", "bad-text", "bad-value", "import", "import-path", "missing-key", "not-finite", "out-of-range"),
    *("unknown-component", "unknown-key", "wrong-type"),
)
"""Codes of the problems that a value has by itself, rather than beside others: skipping it would hide a mistake."""
MOST_REASONS = 10
"""Reasons that are reported, at most; of more, those that differ in their numbers alone are reported as one."""


class FailingParams(NamedTuple):
    """A setting of the axes, and what is wrong with the config that it makes, if anything."""

    setting: Mapping[str, Any]
    problems: list[Problem]

    def reason(self) -> str:
        """Return the problems on one line."""
        return "; ".join(_reason(problem) for problem in self.problems)


@dataclass(frozen=True)
class KnownSizes:
    """Sizes of data sets, asked for once: a set may have to be read from disk for them."""

    _known: dict[str, Sizes | None] = field(default_factory=dict)

    def of(self, config: ExperimentConfig) -> Sizes | None:
        """Number of samples of the config's data; None where it is not known in advance.

        Raises:
            EnvironmentFault: the data cannot be read.
        """
        # what all data sets have in common says how they are loaded
        key = config.data.model_dump_json(exclude=set(DataConfig.model_fields))
        if key not in self._known:
            self._known[key] = config.data.sizes()
        return self._known[key]


class ParamsCheck:
    """Checks settings of the axes over one config."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._base = config.with_overrides({"sweep": None})
        self._sizes = KnownSizes()
        self._calls: dict[str, list[Problem]] = {}

    def problems(self, setting: Mapping[str, Any]) -> list[Problem]:
        """Return the problems of the config that a setting makes, and of what follows from it."""
        try:
            config = self._base.with_overrides(setting)
            derive(config, self._sizes.of(config))
        except ConfigError as error:
            return list(error.problems)
        except EnvironmentFault as error:
            return [Problem(error.code, error.message, "data")]
        return self._about_code(config) if any(map(_calls_code, setting)) else []

    def _about_code(self, config: ExperimentConfig) -> list[Problem]:
        """Return the problems of how the config calls user code, looked up once for each way of calling it."""
        tree = config.model_dump(include=set(ROOMS))
        parts = [(key, part) for key, part in components_in(tree) if "path" in part]
        calls = [(key, part["path"], tuple(part.get("args", ()))) for key, part in parts]
        key = repr(calls)
        if key not in self._calls:
            self._calls[key] = missing_modules(tree)
        return self._calls[key]


def _calls_code(axis: str) -> bool:
    """Return True if an axis may change which user code is called, or with which arguments."""
    section, *below = axis.split(".")
    below = below[1:] if section in COMPONENT_LISTS else below
    return section in ROOMS and (not below or below[0] in ("path", "args"))


def check_axes(check: ParamsCheck, sweep: SweepConfig) -> None:
    """Check the values of each axis, of a range the bounds, where nobody knows yet which ones will come together.

    A value is right if it is beside the config's own values of the other axes, or beside their first ones.

    Raises:
        ConfigError: some are not; with `sweep.invalid: skip` only where no value of an axis is right.
    """
    invalid: list[FailingParams] = []
    may_skip = True
    for axis in sweep.space:
        values = _values(sweep, axis)
        failing = [FailingParams({axis: value}, _problems_anywhere(check, sweep, axis, value)) for value in values]
        wrong = [each for each in failing if each.problems]
        if sweep.invalid == "refuse" or len(wrong) == len(failing):
            invalid += wrong
        may_skip = may_skip and len(wrong) < len(failing)
    if invalid:
        raise refusal(invalid, may_skip)


def _values(sweep: SweepConfig, axis: str) -> Sequence[Any]:
    return sweep.lists[axis] if axis in sweep.lists else sweep.ranges[axis].bounds


def _problems_anywhere(check: ParamsCheck, sweep: SweepConfig, axis: str, value: Any) -> list[Problem]:
    """Return the problems of a value beside the config's own; empty if it is right beside any others that are tried."""
    alone = check.problems({axis: value})
    if not alone or any(not check.problems({**others, axis: value}) for others in _others(sweep, axis)):
        return []
    return alone


def _others(sweep: SweepConfig, axis: str) -> Iterator[dict[str, Any]]:
    """Yield settings of the other axes: their first values; and each component that the axis may be a field of."""
    first = {other: _values(sweep, other)[0] for other in sweep.space if other != axis}
    yield first
    for selector in (f"{axis.partition('.')[0]}.{name}" for name in SELECTORS):
        for value in sweep.lists.get(selector, []) if selector != axis else []:
            yield {selector: value}
            yield {**first, selector: value}


def refusal(invalid: Sequence[FailingParams], may_skip: bool) -> ConfigError:
    """The error about settings that are not a valid config: one problem for each reason, with the first such setting.

    Args:
        invalid: at least one.
        may_skip: whether there are others, so that `sweep.invalid: skip` is a way out.
    """
    exact = _by_reason(invalid, _reason)
    found = exact if len(exact) <= MOST_REASONS else _by_reason(invalid, lambda problem: _masked(_reason(problem)))
    problems = [_problem_of(*group, may_skip) for group in islice(found.values(), MOST_REASONS)]
    if len(found) > MOST_REASONS:
        reason = f"there are {len(found) - MOST_REASONS} more reasons why trials are not a valid config"
        problems.append(Problem("sweep-trial", reason, "sweep.space"))
    return ConfigError(problems)


_Group = tuple[FailingParams, Problem, int]
"""The first setting that fails for a reason, the problem with it, and how many there are."""


def _by_reason(invalid: Sequence[FailingParams], reason_of: Any) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for each in invalid:
        for problem in each.problems:
            reason = reason_of(problem)
            first, about, count = groups.get(reason, (each, problem, 0))
            groups[reason] = first, about, count + 1
    return groups


def _problem_of(first: FailingParams, problem: Problem, count: int, may_skip: bool) -> Problem:
    more = {0: "", 1: "; so does 1 more trial"}.get(count - 1, f"; so do {count - 1:,} more trials")
    axis = _axis_at_fault(first.setting, problem)
    setting = first.setting if axis is None else {axis: first.setting[axis]}
    reason = f"{setting_text(setting, {})} makes no valid config: {_reason(problem)}{more}"
    if axis is not None:
        hint = problem.hint or _hint_of_value(first.setting[axis])
        return Problem("sweep-trial", reason, axis_key(axis), hint=hint)
    hints = [problem.hint, "set sweep.invalid: skip" if may_skip else ""]
    return Problem("sweep-trial", reason, "sweep.space", hint=", or ".join(filter(None, hints)))


def _axis_at_fault(setting: Mapping[str, Any], problem: Problem) -> str | None:
    """The axis whose value is wrong whatever the others are; None where it only disagrees with something."""
    if problem.code not in VALUE_CODES:
        return None
    found = next((axis for axis in setting if f"{problem.key}.".startswith(f"{axis}.")), None)
    section = problem.key.partition(".")[0]
    chosen_by = {section, *(f"{section}.{name}" for name in SELECTORS)} - {found}
    return None if chosen_by & set(setting) else found


def _hint_of_value(value: Any) -> str:
    if isinstance(value, list):
        return "take the inner list out, and write its values into the axis itself"
    return "change this value of the axis, or take it out"


def _reason(problem: Problem) -> str:
    return f"{problem.key}: {problem.reason}" if problem.key else problem.reason


def _masked(text: str) -> str:
    """The text without its numbers."""
    return re.sub(r"\d+(\.\d+)?([eE][-+]?\d+)?", "#", text)
