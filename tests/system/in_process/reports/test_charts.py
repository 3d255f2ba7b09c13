"""Charts: their scales and marks, and as SVG that fits into a page of any theme."""

import math
import re
from math import inf
from typing import Any

import pytest

from paceline.reports import theme
from paceline.reports.drawing import tried
from paceline.reports.figure import Picture, plain
from paceline.reports.line_chart import ChartLine, line_chart
from paceline.reports.page import drawn_chart
from paceline.reports.row_charts import Ratio, bar_chart, ratio_chart
from paceline.reports.xy_chart import XYAxis, XYBand, XYCurve, XYMark, XYPoints, xy_chart
from paceline.runs.report.run_charts import run_charts
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.thinned_curves import curves_of
from support.reports.page import Node, parsed


def svg(picture: Picture, title: str = "chart") -> Node:
    return parsed(picture.svg(title)).one("svg")


def tips(node: Node) -> list[str]:
    """Texts under the pointer."""
    return ["\n".join(map(str, each.children)) for each in node.all("title")]


def some_lines() -> list[ChartLine]:
    return [ChartLine("train/loss", [(0, 1.0), (10, 2.0)]), ChartLine("val/loss", [(5, 1.5)])]


def some_curves() -> Picture:
    return xy_chart(
        "time",
        (XYAxis("batch", True, (32, 64)), XYAxis("seconds", low=0.0)),
        [XYCurve("one", [(32, 5.0), (64, 4.0)], theme.FRONT, True)],
        [XYPoints("two", [(32, 5.0), (64, 4.0)], ["first", "second"], theme.BEST, "*")],
        [XYBand("range", [(32, 4.0, 6.0), (64, 3.0, 5.0)], theme.FRONT)],
        [XYMark("limit", 48.0)],
    )


# SVG


def test_an_svg_has_no_style_and_no_id_that_a_page_could_have_twice() -> None:
    chart = svg(line_chart("loss", some_lines()))
    assert (chart.attributes["role"], chart.attributes["aria-label"]) == ("img", "chart")
    for node in chart.walk():
        assert node.tag not in ("style", "metadata", "script")
        assert "style" not in node.attributes
        assert "id" not in node.attributes or node.tag in ("path", "clippath")
        assert node.tag != "text" or node.attributes["font-size"].endswith("px")
    assert {node.attributes.get("font-weight") for node in chart.all("text")} & {"bold", "700"}
    assert line_chart("loss", some_lines()).svg("a") == line_chart("loss", some_lines()).svg("a")


def test_the_colors_of_an_svg_are_those_of_the_page() -> None:
    pictures = [
        line_chart("loss", some_lines(), [5]),
        bar_chart("split", {"data": [0.6, 0.1], "forward": [0.4, 0.9]}, ["before", "after"]),
        ratio_chart("speeds", [Ratio("cache", 2.0, 1.9, 2.1, "2x", 0.5, "0.5x")], ("speed", "memory")),
        some_curves(),
    ]
    for picture in pictures:
        colors = {node.attributes.get(key, "none") for node in svg(picture).walk() for key in ("fill", "stroke")}
        assert all(color == "none" or re.fullmatch(r"var\(--[a-z0-9-]+\)", color) for color in colors), colors
    assert theme.LIGHT.keys() == theme.DARK.keys()


def test_texts_are_escaped_readable_and_without_secrets() -> None:
    hostile = "<b>$x$ \x00 token=0123456789"
    picture = line_chart(plain(hostile), [ChartLine(hostile, [(0, 1.0), (10, 2.0)])])
    source = picture.svg(hostile)
    assert "<b>" not in source
    assert "0123456789" not in source
    chart = parsed(source)
    assert chart.one("svg").attributes["aria-label"] == "<b>$x$ \N{REPLACEMENT CHARACTER} token=***"
    assert any("<b>$x$" in node.text for node in chart.all("text"))


def test_points_say_their_values_under_the_pointer() -> None:
    shown = tips(svg(line_chart("loss", some_lines(), [5])))
    assert {"train/loss\n1 at step 0", "train/loss\n2 at step 10", "val/loss\n1.5 at step 5"} <= set(shown)
    assert "resumed after step 5" in shown


def test_points_of_curves_have_texts_and_axes_their_own_ticks() -> None:
    picture = some_curves()
    assert {"first", "second", "limit"} <= set(tips(svg(picture)))
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64"]
    assert axes.get_ylim()[0] == 0.0


def test_points_beyond_the_chart_leave_the_others_their_values() -> None:
    values = [1.0] * 30 + [1e6, 2e6] + [1.0 + step / 100 for step in range(80)] + [3e6]
    chart = svg(line_chart("val/f1", [ChartLine("val/f1", list(enumerate(values)))]))
    points = [use for use in chart.all("use") if use.all("title")]
    steps = [int(tips(use)[0].rpartition(" ")[2]) for use in points]
    places = [float(use.attributes["x"]) for use in points]
    assert len(points) > 50
    assert not {30, 31, 112} & set(steps)
    scale = (places[-1] - places[0]) / (steps[-1] - steps[0])
    assert places == pytest.approx([places[0] + scale * (step - steps[0]) for step in steps], abs=0.01)


def test_names_without_a_space_are_cut_and_secrets_that_would_be_wrapped_are_hidden() -> None:
    name = "a_technique_with_a_name_that_is_longer_than_a_row"
    chart = svg(ratio_chart("speeds", [Ratio(name, 2.0, 1.9, 2.1, "2x")], ("speed", "memory")))
    assert any(node.text.startswith(name[:30]) and node.text.endswith("…") for node in chart.all("text"))
    assert plain("some words before api_key=hidden-9f8e7d-value", 30).count("hidden") == 0


def test_a_chart_that_fails_says_so_in_its_place() -> None:
    def fail() -> None:
        raise MemoryError("password=canary-s3cret")

    chart = drawn_chart(fail, "the <b>split")
    assert chart is not None
    assert parsed(chart.svg).text == "the <b>split could not be drawn."
    assert drawn_chart(lambda: None, "nothing") is None


# Lines


def drawn(values: list[float], key: str = "val/accuracy", **options: Any) -> Any:
    return line_chart(key, [ChartLine(key, list(enumerate(values, 1)), **options)]).axes[0]


def test_a_loss_that_falls_far_is_drawn_by_its_logarithm() -> None:
    falling = [2.0**-n for n in range(10)]
    assert [drawn(falling, key).get_yscale() for key in ("train/loss", "val/accuracy")] == ["log", "linear"]
    assert drawn([1.0, 0.5], "train/loss").get_yscale() == "linear"


def test_values_far_above_the_others_are_cut_and_others_are_not() -> None:
    usual = [1 + step / 100 for step in range(100)]
    assert drawn([*usual, 1e6]).get_ylim()[1] < 4
    assert drawn([*usual, 3.0]).get_ylim()[1] > 3


def test_a_line_begins_again_after_a_break() -> None:
    line = drawn([1.0, 2.0, 3.0, 4.0], breaks=[2]).lines[0]
    assert [math.isnan(value) for value in line.get_ydata()] == [False, False, True, False, False]
    assert not any(map(math.isnan, drawn([1.0, 2.0, 3.0]).lines[0].get_ydata()))


def test_values_are_drawn_in_the_unit_of_the_title() -> None:
    axes = drawn([2**30, 3 * 2**29], "peak_memory_bytes")
    assert axes.get_title(loc="left") == "peak_memory_bytes (GiB)"
    assert list(axes.lines[0].get_ydata()) == [1.0, 1.5]


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [1e300, -1e300], [5e-324], [1e-300, 1e300], [1e304] * 2])
def test_any_values_can_be_drawn(values: list[float]) -> None:
    lines = [ChartLine("train/loss", list(enumerate(values)))]
    chart = tried(lambda: svg(line_chart("loss", lines)), "loss")
    assert chart is not None
    assert len(chart.all("text")) > 2


# Rows


def test_ratios_stand_beside_each_other_and_without_an_end_within_the_chart() -> None:
    rows = [Ratio("cache", 2.0, 0.0, inf, "2.00x", 0.5, "0.50x"), Ratio("compile", 0.9, 0.8, 1.0, "0.90x")]
    speed, memory = ratio_chart("speeds", rows, ("speed", "memory")).axes
    assert [label.get_text() for label in speed.get_yticklabels()] == ["cache", "compile"]
    assert (len(speed.collections), len(memory.collections)) == (2, 1)
    assert all(map(math.isfinite, speed.get_xlim()))
    assert speed.get_xlim()[0] < 0.8 < 2.0 < speed.get_xlim()[1]
    assert len(ratio_chart("speeds", rows[1:], ("speed", "memory")).axes) == 1  # without a panel for the memory


def test_bars_are_as_long_as_their_shares() -> None:
    picture = bar_chart("split", {"data": [0.6, 0.1], "forward": [0.4, 0.9]}, ["before", "after"])
    widths = [bar.get_width() for bar in picture.axes[0].patches]
    assert widths == pytest.approx([60, 40, 10, 90])
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["before", "after"]


# Which curves of a run are drawn


def values(key: str, *figures: float) -> list[MetricPoint]:
    return [MetricPoint(key, value, step, step) for step, value in enumerate(figures, 1)]


def titles(*curves: list[MetricPoint]) -> list[str]:
    charts = run_charts(curves_of([point for curve in curves for point in curve]))
    return [parsed(chart.svg).one("svg").attributes["aria-label"] for chart in charts]


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
