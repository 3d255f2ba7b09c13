"""Curves in little memory: what is kept of a long one."""

import math
from itertools import pairwise

from paceline.tracking.thinned_curves import MOST_STRETCHES, ThinnedCurve


def added(values: list[tuple[int, float]]) -> ThinnedCurve:
    curve = ThinnedCurve()
    for step, value in values:
        curve.add(step, value)
    return curve


def test_a_long_curve_keeps_its_ends_and_its_extremes() -> None:
    curve = added([(step, math.sin(step / 50)) for step in range(1, 20_001)] + [(20_001, 9.0), (20_002, 0.0)])
    places = curve.places
    assert len(places) <= 4 * MOST_STRETCHES
    assert (places[0][0], places[-1]) == (1, (20_002.0, 0.0))
    assert {(20_001.0, 9.0), curve.lowest} <= set(places)
    assert all(one[0] < other[0] for one, other in pairwise(places))
    assert (curve.count, curve.newest, curve.highest) == (20_002, (20_002.0, 0.0), (20_001.0, 9.0))


def test_a_short_curve_is_as_it_was_without_what_is_not_finite() -> None:
    values = [(step, float(step % 7)) for step in range(3, 100, 3)]
    assert added(values).places == values
    curve = added([(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)])
    assert (curve.places, curve.odd, curve.first_odd) == ([(1.0, 1.0), (4.0, 2.0)], 2, 2.0)
