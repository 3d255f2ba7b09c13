"""Constraints on the metrics of a sweep's trials, such as `peak_memory_bytes: "<= 8GiB"`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from paceline.config.hints import nearest, show

CONSTRAINT_ERROR = "constraint"
"""Type of the pydantic errors about constraints; their context has the `reason` and the `hint`."""
UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": {"B": 1.0}
    | {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
    | {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "seconds": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
}
"""Unit in a metric's name to the units that a bound may have, each with its size in the metric's unit."""
_EXAMPLE = 'write an operator (<=, <, >= or >) and a number, such as "<= 0.5"'
_FORM = re.compile(r"\s*(<=|>=|<|>)\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)\s*")

Violations = Mapping[str, float]
"""Text of a constraint to the amount by which a trial breaks it: above 0 if it does, see `Constraint.violation`."""


@dataclass(frozen=True)
class Constraint:
    """A limit on a metric."""

    metric: str
    operator: str
    """`<=`, `<`, `>=` or `>`."""
    bound: float
    """Bound in the metric's unit, such as bytes."""
    limit: str
    """Text of the limit, such as `<= 8GiB`."""

    @classmethod
    def parse(cls, metric: str, limit: str) -> "Constraint":
        """Read a limit.

        Raises:
            PydanticCustomError: it is not of the form `<= 8GiB`, or the metric does not have the unit.
        """
        found = _FORM.fullmatch(limit)
        if found is None:
            raise _refused(f"{show(limit)} is not a constraint", _EXAMPLE)
        operator, number, unit = found.groups()
        bound = float(number) * _scale(metric, unit)
        if not math.isfinite(bound):
            raise _refused(f"{show(limit)} is not a finite limit", "write a smaller number")
        return cls(metric, operator, bound, f"{operator} {number}{unit}")

    @property
    def text(self) -> str:
        """Metric and its limit, such as `peak_memory_bytes <= 8GiB`."""
        return f"{self.metric} {self.limit}"

    def violation(self, value: float | None) -> float:
        """Return the amount by which a value breaks the constraint: above 0 if it does, infinite if it is missing."""
        if value is None or not math.isfinite(value):
            return math.inf
        # with < and > the bound itself breaks it
        allowed = math.nextafter(self.bound, {"<": -math.inf, ">": math.inf}.get(self.operator, self.bound))
        return value - allowed if self.operator.startswith("<") else allowed - value


def broken_by(violations: Violations) -> list[str]:
    """Return the constraints that a trial breaks."""
    return [text for text, violation in violations.items() if violation > 0]


def mean_violations(violations: Iterable[Violations]) -> dict[str, float]:
    """Return the mean violation of each constraint over the trials of one setting that have it."""
    values: dict[str, list[float]] = {}
    for each in violations:
        for text, violation in each.items():
            values.setdefault(text, []).append(violation)
    return {text: fmean(own) for text, own in values.items()}


def broken_by_seeds(violations: Sequence[Violations]) -> list[str]:
    """Return the constraints that the trials of one setting break: those with a mean violation above 0.

    If the means satisfy all constraints, but each trial breaks one, return the constraints that the trials break: no
    trial of the setting could be the best one.
    """
    broken = broken_by(mean_violations(violations))
    if broken or not all(map(broken_by, violations)):
        return broken
    return list(dict.fromkeys(text for each in violations for text in broken_by(each)))


def _scale(metric: str, unit: str) -> float:
    """Return the factor from a unit to the metric's unit, such as 2^30 from GiB to bytes; 1 without a unit.

    Raises:
        PydanticCustomError: the metric does not have the unit.
    """
    if not unit:
        return 1.0
    own = next((units for name, units in UNITS.items() if re.search(rf"(?:^|[_/]){name}(?:$|/)", metric)), None)
    if own is None:
        raise _refused(f"{metric} has no unit, and the constraint has {show(unit)}", "write the number alone")
    if unit not in own:
        near = nearest(unit, list(own))
        start = f"did you mean {near}? " if near else ""
        raise _refused(f"there is no unit {show(unit)} of {metric}", f"{start}there are {', '.join(own)}")
    return own[unit]


def _refused(reason: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(CONSTRAINT_ERROR, "{reason}", {"reason": reason, "hint": hint})


def _check_text(value: Any) -> Any:
    if not isinstance(value, str):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        hint = f'write "<= {value}" or ">= {value}"' if is_number else _EXAMPLE
        raise _refused(f"must be text with an operator and a number, not {show(value)}", hint)
    if _FORM.fullmatch(value) is None:
        raise _refused(f"{show(value)} is not a constraint", _EXAMPLE)
    return value


Limit = Annotated[str, BeforeValidator(_check_text)]
"""Operator and number, optionally with a unit: `<= 8GiB`."""
