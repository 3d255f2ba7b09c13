"""Curves of any length in little memory: the first, the last and the extremes of each stretch of steps."""

import math
from collections.abc import Iterable

from paceline.tracking.metric_points import MetricPoint

MOST_STRETCHES = 160
"""A curve has at most so many stretches, of one length, each with up to four values."""

Place = tuple[float, float]
"""Step and value."""


class ThinnedStretch:
    """Some neighbouring steps of a curve."""

    __slots__ = ("count", "first", "high", "last", "low", "steps", "total")

    def __init__(self, place: Place) -> None:
        self.first = self.last = self.low = self.high = place
        self.count, self.steps, self.total = 1, place[0], place[1]

    def add(self, place: Place) -> None:
        """Take one more value, of a step behind those so far."""
        self.last = place
        self.count += 1
        self.steps += place[0]
        self.total += place[1]
        if place[1] < self.low[1]:
            self.low = place
        if place[1] > self.high[1]:
            self.high = place

    def take_over(self, other: "ThinnedStretch") -> None:
        """Take the values of the stretch behind this one."""
        self.last = other.last
        self.low = min(self.low, other.low, key=_value)
        self.high = max(self.high, other.high, key=_value)
        self.count += other.count
        self.steps += other.steps
        self.total += other.total

    @property
    def mean(self) -> Place:
        """The middle of the steps, and the mean of the values."""
        return self.steps / self.count, self.total / self.count

    @property
    def places(self) -> list[Place]:
        """The values that are kept, in the order of the steps."""
        return sorted({self.first, self.low, self.high, self.last})


class ThinnedCurve:
    """The values of one metric over the steps, thinned out while they are added."""

    def __init__(self) -> None:
        self.count = 0
        """Values, those that are not finite included."""
        self.odd = 0
        """Number of those that are NaN or infinite."""
        self.first_odd: float | None = None
        """The first step with such a value."""
        self.lowest: Place | None = None
        self.highest: Place | None = None
        self.newest: Place = (0.0, math.nan)
        self._width = 1
        self._stretches: dict[int, ThinnedStretch] = {}

    def add(self, step: int, value: float) -> None:
        """Take the value of a step behind those so far."""
        self.count += 1
        place = (float(step), value)
        self.newest = place
        if not math.isfinite(value):
            self.odd += 1
            self.first_odd = place[0] if self.first_odd is None else self.first_odd
            return
        if self.lowest is None or value < self.lowest[1]:
            self.lowest = place
        if self.highest is None or value > self.highest[1]:
            self.highest = place
        self._keep(step, place)

    def _keep(self, step: int, place: Place) -> None:
        stretch = self._stretches.get(step // self._width)
        if stretch is not None:
            stretch.add(place)
            return
        self._stretches[step // self._width] = ThinnedStretch(place)
        while len(self._stretches) > MOST_STRETCHES:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        joined: dict[int, ThinnedStretch] = {}
        for stretch in self._stretches.values():
            index = int(stretch.first[0]) // self._width
            if index in joined:
                joined[index].take_over(stretch)
            else:
                joined[index] = stretch
        self._stretches = joined

    @property
    def places(self) -> list[Place]:
        """The finite values that are kept."""
        return [place for stretch in self._stretches.values() for place in stretch.places]

    @property
    def means(self) -> list[Place]:
        """One value for each stretch: what several curves can be averaged by."""
        return [stretch.mean for stretch in self._stretches.values()]


def curves_of(points: Iterable[MetricPoint]) -> dict[str, ThinnedCurve]:
    """A curve for each metric, of points in the order they came."""
    curves: dict[str, ThinnedCurve] = {}
    for point in points:
        if (curve := curves.get(point.key)) is None:
            curve = curves[point.key] = ThinnedCurve()
        curve.add(point.step, point.value)
    return curves


def _value(place: Place) -> float:
    return place[1]
