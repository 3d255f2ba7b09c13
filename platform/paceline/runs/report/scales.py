"""From values to places in a picture, and the round numbers at its edges."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_TICKS = 6
_LEAST = 1e-290
"""Positive numbers below it, and above its inverse, are not shown on a logarithmic scale."""
_MOST = 1.7e308
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Takes the values between `low` and `high` to the places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    is_cut: bool = False
    """Whether there are values above `high`, which are not shown."""
    base: float = 10.0
    """Of the round values: 10, or 1024 for sizes in bytes."""

    def __call__(self, value: float) -> float:
        """The place of a value; of one outside a bit outside."""
        # halves, since the distance of two large numbers may be none any more
        low, high, at = (
            math.log10(max(each, _LEAST)) if self.is_log else each / 2 for each in (self.low, self.high, value)
        )
        share = min(max((at - low) / (high - low), -0.5), 1.5)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if self.is_log:
            return _log_ticks(self.low, self.high)
        unit = _unit(self.high, self.base)
        return [unit * value for value in _ticks(self.low / unit, self.high / unit)]


def scale(
    values: Iterable[float], start: float, end: float, *, log: bool = False, cut: bool = False, base: float = 10.0
) -> Scale:
    """One that has room for all values.

    Args:
        values: finite ones; none will do.
        start: where the lowest one goes.
        end: where the highest one goes.
        log: use a logarithmic scale if all values are positive.
        cut: leave out values that lie far above nearly all others, as the last ones of a training that diverged.
        base: of the round values, see `Scale`.
    """
    known = sorted(values)
    is_log = log and bool(known) and known[0] > _LEAST and known[-1] < 1 / _LEAST
    low, high = (known[0], known[-1]) if known else (0.0, 1.0)
    most = _usual(known, is_log) if cut and len(known) >= 20 else high
    is_cut = most < high
    low, high = _widened(low, most if is_cut else high, is_log)
    return Scale(low, high, start, end, is_log, is_cut, base)


def spans_decades(values: Sequence[float], factor: float = 50.0) -> bool:
    """Whether positive values lie so far apart that a linear scale would hide most of them."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= factor


def _usual(known: list[float], is_log: bool) -> float:
    """A bit above what nearly all values stay below; the highest one if that is not far off."""
    own = [math.log10(value) for value in known] if is_log else known
    high = own[int(0.97 * (len(own) - 1))]
    spread = high - own[0]
    if spread <= 0 or own[-1] - own[0] <= 3 * spread:
        return known[-1]
    return float(10 ** (high + 0.3 * spread)) if is_log else high + 0.3 * spread


def _widened(low: float, high: float, is_log: bool) -> tuple[float, float]:
    """With a margin, and never of no extent."""
    if is_log:
        factor = max((high / low) ** 0.04, 1.02)
        return low / factor, high * factor
    margin = 0.04 * high - 0.04 * low or abs(high) * 0.05 or 0.5
    wide = max(low - margin, -_MOST), min(high + margin, _MOST)
    return (0.0 if low >= 0 > wide[0] else wide[0]), wide[1]


def _unit(high: float, base: float) -> float:
    """The largest power of the base that is not above the highest value; 1 for decimal numbers, which need none."""
    if base == 10.0 or not 1 < high < 1e300:
        return 1.0
    return float(base ** math.floor(math.log(high, base) + 1e-12))


def _ticks(low: float, high: float) -> list[float]:
    rough = high / MOST_TICKS - low / MOST_TICKS
    if not math.isfinite(rough) or rough <= 0:
        return [low, high]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in _STEPS if power * factor >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [
        round(index * step, 12) if abs(step) > 1e-9 else index * step for index in range(first, _last(high, step) + 1)
    ]


def _last(high: float, step: float) -> int:
    return math.floor(high / step + 1e-9)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [value for value in found if low <= value <= high]
        if len(inside) >= 3:
            return inside[:: -(-len(inside) // MOST_TICKS)]
    return _ticks(low, high)
