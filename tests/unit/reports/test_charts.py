"""Curves in little memory, round numbers at the axes, and charts."""

import math
from itertools import pairwise
from typing import Any

import pytest

from paceline.runs.report.charts import Axis, Line, line_chart
from paceline.runs.report.labels import LETTER, LINE, Label, Room
from paceline.runs.report.numbers import axis_formatter, formatter
from paceline.runs.report.run_charts import run_charts
from paceline.runs.report.scales import scale
from paceline.tracking import metrics
from paceline.tracking.curves import MOST_STRETCHES, Curve, curves_of, thinned
from paceline.tracking.points import Point
from support.reports.page import Node, parsed

SPACE = "\N{NARROW NO-BREAK SPACE}"


def added(values: list[tuple[int, float]]) -> Curve:
    curve = Curve()
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


def test_thinning_keeps_the_extremes() -> None:
    values = [(float(step), 100.0 if step == 501 else -3.0 if step == 333 else 0.0) for step in range(1000)]
    found = thinned(values, 20)
    assert len(found) <= 20
    assert {(501.0, 100.0), (333.0, -3.0), values[0], values[-1]} <= set(found)


# Scales and numbers


@pytest.mark.parametrize(
    ("values", "options", "ticks"),
    [
        ([0.0, 10.0], {}, [0, 2, 4, 6, 8, 10]),
        ([0.91, 0.97], {}, [0.92, 0.94, 0.96]),
        ([1e-3, 1.0], {"log": True}, [0.001, 0.01, 0.1, 1.0]),
        ([100 * 2**20, 500 * 2**20], {"base": 1024.0}, [2**20 * value for value in (100, 200, 300, 400, 500)]),
        ([], {}, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ([-1.0, 1.0], {"log": True}, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round(values: list[float], options: dict[str, Any], ticks: list[float]) -> None:
    assert scale(values, 0, 100, **options).ticks == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [1e308, -1e308], [5e-324], [1e-300, 1e300], [7e307] * 2])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_have_places(values: list[float], log: bool) -> None:
    found = scale(values, 10, 90, log=log)
    assert all(10 <= found(value) <= 90 for value in values)
    assert len(found.ticks) < 20


def test_values_far_above_the_others_are_cut_and_others_are_not() -> None:
    usual = [1 + step / 100 for step in range(100)]
    assert scale([*usual, 1e6], 0, 100, cut=True).high < 4
    assert not scale([*usual, 3.0], 0, 100, cut=True).is_cut


@pytest.mark.parametrize(
    ("format", "key", "value", "shown"),
    [
        (formatter, "peak_memory_bytes", 3 * 2**29, f"1.5{SPACE}GiB"),
        (formatter, "rank_seconds/max", 0.25, f"250{SPACE}ms"),
        (formatter, "data_wait_fraction", 0.125, f"12.5{SPACE}%"),
        (formatter, "samples_per_second", 12_345.6, "12,346"),
        (formatter, "val/loss", math.nan, "nan"),
        (formatter, "system/network_receive_megabytes", 0.001056, f"1.06{SPACE}kB"),
        (axis_formatter, "samples_per_second", 12_500, "12.5k"),
        (formatter, "system/network_receive_megabytes", 0.0, f"0{SPACE}B"),
        (axis_formatter, "cost/core_seconds", 80.0, "1m 20s"),
        (axis_formatter, "cost/core_seconds", 3900.0, "1h 5m"),
        (axis_formatter, "step_seconds", 12.5, f"12.5{SPACE}s"),
        (axis_formatter, "system/disk_available_megabytes", 72642.2, f"72.6{SPACE}GB"),
    ],
)
def test_numbers_have_their_units(format: Any, key: str, value: float, shown: str) -> None:
    assert format(key)(value) == shown


# Charts


def test_a_chart_escapes_its_labels_and_has_values_under_the_mouse() -> None:
    chart = line_chart("<b>", [Line("<i>", [(0, 1.0), (10, 2.0)])], Axis("<x>"), Axis("y"))
    assert "<title>&lt;i&gt;\n2 at 10</title>" in chart
    assert parsed(chart).one("svg").attributes["aria-label"] == "<b>"
    assert ">&lt;x&gt;</text>" in chart


def test_labels_beside_points_that_lie_together_lie_apart_and_within_the_chart() -> None:
    points = [(200.0, 100.0 + number) for number in range(8)] + [(395.0, 12.0)]
    room = Room(0.0, 400.0, 0.0, 300.0, points)
    words = [f"technique-{number}" for number in range(9)]
    labels = [room.place(each, point) for each, point in zip(words, points, strict=True)]
    boxes = []
    for label, word in zip(labels, words, strict=True):
        left = label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * LETTER * len(word)
        boxes.append((left, left + LETTER * len(word), label.y - LINE + 3, label.y + 3))
    for index, (left, right, top, bottom) in enumerate(boxes):
        assert min(left, top) >= 0
        assert right <= 400
        for other in boxes[index + 1 :]:
            assert min(right, other[1]) <= max(left, other[0]) or min(bottom, other[3]) <= max(top, other[2])
    assert labels[0] == Label(209.0, 104.0, "start", False)  # the nearest place goes to the first
    assert any(label.is_far for label in labels)
    assert labels[-1].anchor == "end"


# Which curves of a run are drawn


def values(key: str, *figures: float) -> list[Point]:
    return [Point(key, value, step, step) for step, value in enumerate(figures, 1)]


def drawn(*curves: list[Point]) -> Node:
    return parsed(run_charts(curves_of([point for curve in curves for point in curve])))


def titles(*curves: list[Point]) -> list[str]:
    return [node.attributes["aria-label"] for node in drawn(*curves).all("svg")]


def test_curves_with_few_points_are_not_drawn() -> None:
    few = [values("val/f1", 1, 2), values(metrics.SAMPLES_PER_SECOND_OVERALL, 1, 2, 3)]
    costs = values(metrics.cost_metric("price"), 1, 2, 3)
    assert titles(*few, costs, values("lr", 1, 2, 3)) == ["lr"]
    assert titles(values("train/loss", 3, 2, 1), values("val/loss", 2, 1)) == ["loss"]
    assert titles(*few) == []


def test_sizes_of_the_machine_are_grouped_by_device() -> None:
    names = [name for name in metrics.HOST_METRICS if "megabytes" in name]
    found = [values(metrics.system_metric(name), 1, 2, 3) for name in names]
    assert titles(*found) == ["system: disk", "system: memory", "system: network"]
