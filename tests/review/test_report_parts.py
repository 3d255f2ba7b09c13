"""What a report is made of: HTML that is safe, curves in little memory, and round numbers at the axes."""

import math
from itertools import pairwise

import pytest

from paceline.review.report.charts import Axis, Dot, Line, line_chart, scatter_chart
from paceline.review.report.heat import color_of
from paceline.review.report.html import is_web, join, link, tag, text
from paceline.review.report.labels import LETTER, LINE, Label, Room
from paceline.review.report.numbers import axis_formatter, bytes_text, formatter, seconds_text
from paceline.review.report.scales import scale
from paceline.tracking.curves import MOST_STRETCHES, Curve, thinned

# HTML


def test_only_markup_is_not_escaped() -> None:
    assert tag("p", "a<b>&c", ["d", None, tag("b", "<")], class_="x") == '<p class="x">a&lt;b&gt;&amp;cd<b>&lt;</b></p>'
    assert tag("td", title="\"'<>&", data_value=0.5, hidden=True, id=None) == (
        '<td title="&quot;&#x27;&lt;&gt;&amp;" data-value="0.5" hidden></td>'
    )
    assert join(["<", text("<")]) == "&lt;&lt;"


@pytest.mark.parametrize(
    "attributes",
    [
        {"onclick": "x()"},
        {"style": "color:red"},
        {"href": "javascript:alert(1)"},
        {"href": " https://x"},
        {"href": "//host/x"},
        {"href": "data:text/html,x"},
        {"src": "https://x/y.png"},
        {"srcdoc": "x"},
        {"formaction": "https://x"},
    ],
)
def test_an_attribute_that_could_run_or_load_something_is_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="could run or load something"):
        tag("a", **attributes)


def test_what_is_no_address_of_the_web_is_no_link() -> None:
    assert link("http://host/#/x?a=1&b=2", "there").startswith('<a href="http://host/#/x?a=1&amp;b=2"')
    for url in ("javascript:alert(1)", "", "file:///etc", "https://", "http:x", "http://[", "\thttp://host"):
        assert not is_web(url)
        assert link(url, "<there>") == "&lt;there&gt;"


def test_what_no_file_may_hold_is_replaced() -> None:
    assert text("a\x00b\ud800c\n") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\n"


def test_secrets_are_hidden_in_texts_and_attributes() -> None:
    assert tag("p", "token=0123456789", title="https://me:word@host/") == '<p title="https://***@host/">token=***</p>'


# Curves


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
    assert (20_001.0, 9.0) in places
    assert curve.lowest in places
    assert all(one[0] < other[0] for one, other in pairwise(places))
    assert (curve.count, curve.newest, curve.highest) == (20_002, (20_002.0, 0.0), (20_001.0, 9.0))


def test_the_means_of_curves_with_the_same_steps_are_at_the_same_steps() -> None:
    one, other = (added([(step, value * step) for step in range(0, 5_000, 5)]) for value in (1.0, 2.0))
    assert [x for x, _ in one.means] == [x for x, _ in other.means]
    assert [2 * y for _, y in one.means] == pytest.approx([y for _, y in other.means])
    assert len(one.means) <= MOST_STRETCHES


def test_a_short_curve_is_as_it_was() -> None:
    values = [(step, float(step % 7)) for step in range(3, 100, 3)]
    assert added(values).places == values


def test_values_that_are_not_finite_are_counted_and_not_drawn() -> None:
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
def test_ticks_are_round(values: list[float], options: dict[str, float], ticks: list[float]) -> None:
    assert scale(values, 0, 100, **options).ticks == pytest.approx(ticks)  # type: ignore[arg-type]


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


def test_numbers_have_their_units() -> None:
    assert formatter("peak_memory_bytes")(3 * 2**29) == bytes_text(3 * 2**29) == "1.5\N{NARROW NO-BREAK SPACE}GiB"
    assert formatter("rank_seconds/max")(0.25) == "250\N{NARROW NO-BREAK SPACE}ms"
    assert formatter("data_wait_fraction")(0.125) == "12.5\N{NARROW NO-BREAK SPACE}%"
    assert formatter("samples_per_second")(12_345.6) == "12,346"
    assert formatter("val/loss")(math.nan) == "nan"
    assert axis_formatter("samples_per_second")(12_500) == "12.5k"
    assert (seconds_text(3725), seconds_text(200)) == ("1 h 2 min", "3 min 20 s")


# Charts


def test_a_chart_says_its_values_under_the_mouse_and_escapes_its_labels() -> None:
    chart = line_chart("<b>", [Line("<i>", [(0, 1.0), (10, 2.0)])], Axis("<x>"), Axis("y"))
    assert "<title>&lt;i&gt;\n2 at 10</title>" in chart
    assert 'aria-label="&lt;b&gt;"' in chart
    assert ">&lt;x&gt;</text>" in chart


def test_dots_lie_where_their_values_are() -> None:
    chart = scatter_chart("", [Dot(0, 0, "low"), Dot(1, 1, "high", "best")], Axis("x"), Axis("y"))
    low, high = chart.index("<title>low"), chart.index("<title>high")
    assert low < high
    assert 'class="point best"' in chart


def test_the_colors_go_from_dark_to_bright() -> None:
    assert color_of(0.0) == ("#440154", True)
    assert color_of(1.0) == ("#fde725", False)


def _box(label: Label, words: str) -> tuple[float, float, float, float]:
    left = label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * LETTER * len(words)
    return left, left + LETTER * len(words), label.y - LINE + 3, label.y + 3


def test_words_beside_points_that_lie_together_lie_apart_and_within_the_chart() -> None:
    points = [(200.0, 100.0 + number) for number in range(8)] + [(395.0, 12.0)]
    room = Room(0.0, 400.0, 0.0, 300.0, points)
    words = [f"technique-{number}" for number in range(9)]
    labels = [room.place(each, point) for each, point in zip(words, points, strict=True)]
    boxes = [_box(*each) for each in zip(labels, words, strict=True)]
    for index, (left, right, top, bottom) in enumerate(boxes):
        assert min(left, top) >= 0
        assert right <= 400
        for other in boxes[index + 1 :]:
            assert min(right, other[1]) <= max(left, other[0]) or min(bottom, other[3]) <= max(top, other[2])
    assert labels[0] == Label(209.0, 104.0, "start", False)  # the nearest place goes to the first
    assert any(label.is_far for label in labels)
    assert labels[-1].anchor == "end"
