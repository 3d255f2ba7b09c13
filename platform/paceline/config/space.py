"""The axes of a sweep: lists of values, and ranges that values are drawn from."""

import math
from collections.abc import Callable, Hashable, Mapping
from random import Random
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from paceline.config.base import Section
from paceline.config.hints import nearest, show

AXES = "sweep.space."
"""Prefix of the keys of axes; everything after it is the name of the axis, dots included."""
AXIS_ERROR = "axis"
"""Type of the pydantic errors about axes; their context has the `reason` and the `hint`."""
LARGEST = 10**60
"""Largest absolute value of a number. Whole numbers in a config file have at most 64 digits."""
LARGEST_WHOLE = 2**63 - 1
"""Largest absolute value of a bound of `randint`."""

Number = int | float
_Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
_Positive = Annotated[float, Field(gt=0, le=LARGEST)]
_Whole = Annotated[int, Field(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
_AsWritten = Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | _Finite


def refused(reason: str, hint: str = "") -> PydanticCustomError:
    """Return the error with which a validator rejects an axis or the whole space."""
    return PydanticCustomError(AXIS_ERROR, "{reason}", {"reason": reason, "hint": hint})


def _bounds(name: str, check: Callable[[str, list[Number]], None], longest: int = 2) -> Any:
    """Return a validator of a range's bounds: two ascending numbers that also pass `check`."""

    def validate(value: Any) -> Any:
        _check_form(name, value, longest)
        low, high = value[:2]
        if low >= high:
            swapped = f"write {name}: [{high}, {low}{''.join(f', {step}' for step in value[2:])}]"
            hint = swapped if low > high else f"write a list of the one value: [{low}]"
            raise refused(f"the lower bound {low} is not below the upper bound {high}", hint)
        check(name, value)
        return value

    return BeforeValidator(validate)


def _check_form(name: str, value: Any, longest: int) -> None:
    form = {2: "[lowest, highest]", 3: "[lowest, highest, step]"}[longest]
    if not isinstance(value, list) or not 2 <= len(value) <= longest:
        found = f"a list of {len(value)}" if isinstance(value, list) else show(value)
        raise refused(f"must be a list of the form {form}, not {found}", f"write {name}: [0, 1], for example")
    for number in value:
        if type(number) not in (int, float):
            raise refused(f"must be a list of numbers, not of {show(number)}", f"write {name}: [0, 1], for example")
        if not abs(number) <= LARGEST:
            raise refused(f"must be a list of finite numbers, 1e60 at most, not of {show(number)}")


def _anything(name: str, bounds: list[Number]) -> None:
    """Accept all bounds."""


def _has_logarithm(name: str, bounds: list[Number]) -> None:
    if bounds[0] <= 0:
        hint = f"write {name}: [{bounds[1] / 1000:.6g}, {bounds[1]}], for example" if bounds[1] > 0 else "write uniform"
        raise refused(f"the lower bound {bounds[0]} is not above 0, and has no logarithm", hint)


def _has_step(name: str, bounds: list[Number]) -> None:
    low, high, step = bounds if len(bounds) == 3 else (*bounds, 1)
    if step <= 0:
        raise refused(f"the step {step} is not above 0", f"write {name}: [{low}, {high}, 1], for example")
    if step > high - low:
        reason = f"the step {step} is longer than the range from {low} to {high}"
        raise refused(reason, f"write a step of {high - low:.6g} at most, or a list of values")
    if (high - low) / step > LARGEST_WHOLE:
        raise refused(f"the step {step} is too short for the range from {low} to {high}", "write uniform")


def _is_whole(name: str, bounds: list[Number]) -> None:
    if not all(isinstance(bound, int) for bound in bounds):
        hint = f"write {name}: [{math.floor(bounds[0])}, {math.ceil(bounds[1])}], or uniform"
        raise refused("must be a list of whole numbers", hint)
    if max(abs(bound) for bound in bounds) > LARGEST_WHOLE:
        raise refused(f"must be a list of whole numbers of {LARGEST_WHOLE} at most")


class Range(Section):
    """Distribution of the numbers of an axis."""

    def sample(self, rng: Random) -> Number:
        """Return a number drawn with `rng`."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[Number, Number]:
        """Lowest and highest number that can be drawn."""
        raise NotImplementedError

    @property
    def is_whole(self) -> bool:
        """True if all numbers are whole numbers."""
        return all(isinstance(bound, int) for bound in self.bounds)


class Uniform(Range):
    """Uniform distribution between two bounds."""

    uniform: Annotated[list[_Finite], Field(min_length=2, max_length=2), _bounds("uniform", _anything)]
    """Lowest and highest number, -10^60 to 10^60."""

    def sample(self, rng: Random) -> float:
        """Return a number between the bounds."""
        return rng.uniform(*self.bounds)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound, as written."""
        return self.uniform[0], self.uniform[1]


class LogUniform(Range):
    """Log-uniform distribution between two bounds: each order of magnitude is equally likely."""

    loguniform: Annotated[list[_Positive], Field(min_length=2, max_length=2), _bounds("loguniform", _has_logarithm)]
    """Lowest and highest number, above 0 and at most 10^60."""

    def sample(self, rng: Random) -> float:
        """Return a number between the bounds."""
        low, high = self.bounds
        drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
        return min(max(drawn, low), high)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound, as written."""
        return self.loguniform[0], self.loguniform[1]


class QUniform(Range):
    """Uniform distribution over a grid: the first bound plus whole multiples of a step, up to the second bound."""

    quniform: Annotated[list[_AsWritten], Field(min_length=2, max_length=3), _bounds("quniform", _has_step, longest=3)]
    """Lowest and highest number, -10^60 to 10^60, and the step between two numbers, above 0. The step is 1 if left out.
    Whole numbers are drawn if all three are written as whole numbers."""

    def sample(self, rng: Random) -> Number:
        """Return a number of the grid."""
        return self._at(rng.randint(0, self._steps()))

    @property
    def bounds(self) -> tuple[Number, Number]:
        """Lower bound as written, and the highest number of the grid, which may be below the upper bound."""
        return self.quniform[0], self._at(self._steps())

    @property
    def step(self) -> Number:
        """Distance between two numbers of the grid."""
        return self.quniform[2] if len(self.quniform) == 3 else 1

    def _steps(self) -> int:
        low, high = self.quniform[:2]
        # 0.3 / 0.1 is a little less than 3
        return int((high - low) / self.step * (1 + 1e-12))

    def _at(self, index: int) -> Number:
        low, high = self.quniform[:2]
        number = low + index * self.step
        return number if isinstance(number, int) else min(float(f"{number:.14g}"), float(high))


class RandInt(Range):
    """Uniform distribution of whole numbers from the first bound up to, but without, the second, as in Ray Tune."""

    randint: Annotated[list[_Whole], Field(min_length=2, max_length=2), _bounds("randint", _is_whole)]
    """Lowest number, and the highest number plus 1, -(2^63 - 1) to 2^63 - 1."""

    def sample(self, rng: Random) -> int:
        """Return a whole number, never the second bound."""
        return rng.randrange(*self.randint)

    @property
    def bounds(self) -> tuple[int, int]:
        """Lowest and highest number that can be drawn; the highest is one below the written bound."""
        return self.randint[0], self.randint[1] - 1


RANGES: Mapping[str, type[Range]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "quniform": QUniform,
    "randint": RandInt,
}
_ALL = f"{', '.join(list(RANGES)[:-1])} or {list(RANGES)[-1]}"
_HINT = f"write a list of values such as [1, 2], or one of {_ALL} such as {{uniform: [0, 1]}}"


def _check_axis(value: Any) -> Any:
    if isinstance(value, list | Range):
        return value
    if not isinstance(value, Mapping):
        single = isinstance(value, str | int | float) and not isinstance(value, bool)
        hint = f"write [{value!s:.60}], or a range such as {{uniform: [0, 1]}}" if single else _HINT
        raise refused(f"must be a list of values or a range, not {show(value)}", hint)
    known = [name for name in value if name in RANGES]
    if len(value) == 1 and not known:
        raise refused(f"there is no range {show(next(iter(value)))}", _range_hint(next(iter(value))))
    if len(value) != 1:
        reason = "has no range in it" if not known else f"has {show(known[0])} and other keys beside it"
        raise refused(reason, f"write exactly one of {_ALL}, or a list of values")
    return value


def _range_hint(name: Any) -> str:
    near = nearest(name, list(RANGES)) if isinstance(name, str) else None
    return f"did you mean {near}?" if near else f"there are {_ALL}; an axis is named in full, such as optimizer.lr"


def _check_values(values: list[Any]) -> list[Any]:
    if not values:
        raise refused("is an empty list", "write at least one value, or take the axis out")
    first: dict[Hashable, int] = {}
    for index, value in enumerate(values):
        earlier = first.setdefault(meaning(value), index)
        if earlier != index:
            raise refused(f"{show(value)} is in the list twice, as values {earlier + 1} and {index + 1}", "keep one")
    return values


def meaning(value: Any) -> Hashable:
    """Return a hashable key that is equal for values with the same meaning, such as 1 and 1.0.

    Raises:
        PydanticCustomError: the value cannot be written to a config file.
    """
    if value is None or type(value) is bool:
        return "constant", value
    if (type(value) is int and abs(value) <= LARGEST) or (type(value) is float and math.isfinite(value)):
        return "number", value
    if type(value) is str and not any("\ud800" <= character <= "\udfff" for character in value):
        return "text", value
    if isinstance(value, list):
        return "list", tuple(meaning(item) for item in value)
    if isinstance(value, Mapping):
        return "mapping", frozenset((meaning(key), meaning(item)) for key, item in value.items())
    hint = "write numbers of 60 digits at most, text, true, false, null, or lists and mappings of them"
    raise refused(f"{show(value)} is not a value that a saved config can hold", hint)


def _variant(value: Any) -> str | None:
    """Return the union tag of an axis of valid form; None for an unknown range."""
    if isinstance(value, list):
        return "Values"
    cls = type(value) if isinstance(value, Range) else RANGES.get(next(iter(value), "")) if value else None
    return cls.__name__ if cls else None


Axis = Annotated[
    Annotated[list[Any], AfterValidator(_check_values), Field(min_length=1), Tag("Values")]
    | Annotated[Uniform, Tag("Uniform")]
    | Annotated[LogUniform, Tag("LogUniform")]
    | Annotated[QUniform, Tag("QUniform")]
    | Annotated[RandInt, Tag("RandInt")],
    Discriminator(_variant),
    BeforeValidator(_check_axis),
]
"""Axis: a list of values, or a mapping of `uniform`, `loguniform`, `quniform` or `randint` to its bounds."""
