"""Pictures with two axes as SVG within the page: lines with bands, and points. Their colors are those of the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.runs.report.html import Markup, tag
from paceline.runs.report.labels import Room
from paceline.runs.report.numbers import axis_formatter, axis_text, unit_of
from paceline.runs.report.scales import Scale, scale
from paceline.tracking.curves import Place, thinned

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 14.0, 12.0, 46.0
COLORS = 8
"""The colors of the style sheet, `c0` and so on."""
MARKED = 60
"""Places of a line that say their value under the mouse."""
Format = Callable[[float], str]


@dataclass(frozen=True)
class Band:
    """What several curves have in common: the lowest and the highest value at each step."""

    low: Sequence[Place]
    high: Sequence[Place]


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    label: str
    places: Sequence[Place]
    color: int | None = 0
    """Which one; None for one of those in the background."""
    band: Band | None = None
    """Drawn around it."""
    is_dashed: bool = False
    """Seen beside the line that it lies upon."""
    breaks: Sequence[float] = ()
    """Places to the right across which nothing is drawn."""


@dataclass(frozen=True)
class Mark:
    """A thin line upwards."""

    x: float
    label: str
    """What it says under the mouse."""


@dataclass(frozen=True)
class Axis:
    """One side of a chart."""

    label: str
    format: Format = axis_text
    log: bool = False
    cut: bool = False
    """Whether values far above the others are left out."""
    base: float = 10.0
    """Of the round values at it."""


@dataclass(frozen=True)
class Dot:
    """One point of a scatter chart."""

    x: float
    y: float
    label: str
    kind: str = "plain"
    """`plain`, `front`, `best`, `open`, or `filled` with a color of its own."""
    mark: str = ""
    """Written beside it."""
    fill: str = ""
    """A color in place of its kind's."""
    ends: Place | None = None
    """Of its interval upwards."""


@dataclass(frozen=True)
class Frame:
    """The axes, and what is drawn of them."""

    x: Scale
    y: Scale
    parts: list[Markup] = field(default_factory=list)


def axis_of(key: str, label: str = "", log: bool = False, cut: bool = False) -> Axis:
    """The side that a metric is shown at, with its unit."""
    return Axis(label or key, axis_formatter(key), log, cut, 1024.0 if unit_of(key) == "bytes" else 10.0)


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, marks: Sequence[Mark] = ()) -> Markup:
    """Lines over a common axis, those of no color behind the others, and behind all of them the marks."""
    drawn = [line for line in lines if line.places]
    places = [place for line in drawn for place in _extent(line)]
    frame = _frame(places, x, y)
    behind = [_path(line.places, frame, "other", line.label) for line in drawn if line.color is None]
    bands = [_area(line.band, line.color, frame) for line in drawn if line.band and line.color is not None]
    front = [_colored(line, frame, y.format) for line in drawn if line.color is not None]
    upright = [_mark(mark, frame) for mark in marks]
    return svg(title, [*frame.parts, tag("g", upright, behind, bands, front, clip_path="url(#inner)")])


def scatter_chart(
    title: str, dots: Sequence[Dot], x: Axis, y: Axis, steps: Sequence[Place] = (), cross: Place | None = None
) -> Markup:
    """Points with their intervals.

    Args:
        steps: places through which a line of steps goes: the edge of what is reached.
        cross: a place that all others are held against, with a thin line in each direction.
    """
    places = [(dot.x, value) for dot in dots for value in (dot.y, *(dot.ends or ()))]
    frame = _frame([*places, *([cross] if cross else [])], x, y)
    edge = [_shape(steps, frame, "front")] if len(steps) > 1 else []
    behind = [*_cross(cross, frame), *(_interval(dot, frame) for dot in dots if dot.ends)]
    order = {"open": 0, "plain": 1, "filled": 1, "front": 2, "best": 3}
    circles = [_circle(dot, frame) for dot in sorted(dots, key=lambda dot: order[dot.kind])]
    words = _words(sorted(dots, key=lambda dot: -(order[dot.kind] or 1.5)), frame)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f"rotate(-90 12 {middle:g})"
    upwards = tag("text", y.label, x=12.0, y=middle, text_anchor="middle", class_="label", transform=turned)
    return svg(title, [*frame.parts, upwards, *behind, *edge, *circles, *words])


def _extent(line: Line) -> list[Place]:
    return [*line.places, *line.band.low, *line.band.high] if line.band and line.color is not None else [*line.places]


def _frame(places: Sequence[Place], x: Axis, y: Axis) -> Frame:
    across = scale((place[0] for place in places), LEFT, WIDTH - RIGHT, log=x.log, cut=x.cut, base=x.base)
    upwards = scale((place[1] for place in places), HEIGHT - BOTTOM, TOP, log=y.log, cut=y.cut, base=y.base)
    frame = Frame(across, upwards)
    for value in upwards.ticks:
        at = upwards(value)
        frame.parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        frame.parts.append(tag("text", y.format(value), x=LEFT - 8, y=at + 4, text_anchor="end", class_="tick"))
    for value in across.ticks:
        frame.parts.append(
            tag("text", x.format(value), x=across(value), y=HEIGHT - BOTTOM + 19, text_anchor="middle", class_="tick")
        )
    frame.parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    frame.parts.append(tag("text", x.label, x=middle, y=HEIGHT - 8, text_anchor="middle", class_="label"))
    return frame


def _path(places: Sequence[Place], frame: Frame, kind: str, label: str) -> Markup:
    return tag("g", tag("title", label), _shape(places, frame, kind), _shape(places, frame, "hit"), class_="line")


def _mark(mark: Mark, frame: Frame) -> Markup:
    at = frame.x(mark.x)
    ends = {"x1": at, "x2": at, "y1": TOP, "y2": HEIGHT - BOTTOM}
    return tag("g", tag("title", mark.label), tag("line", class_="resumed", **ends), tag("line", class_="hit", **ends))


def _shape(places: Sequence[Place], frame: Frame, kind: str, breaks: Sequence[float] = ()) -> Markup:
    return tag("path", d=_route(places, frame, breaks), class_=kind)


def _route(places: Sequence[Place], frame: Frame, breaks: Sequence[float] = ()) -> str:
    starts = {next((index for index, place in enumerate(places) if place[0] > x), 0) for x in breaks}
    letters = ("M" if index == 0 or index in starts else "L" for index in range(len(places)))
    return "".join(f"{letter}{frame.x(x):g} {frame.y(y):g}" for letter, (x, y) in zip(letters, places, strict=True))


def _area(band: Band, color: int | None, frame: Frame) -> Markup:
    return tag("path", d=_route([*band.high, *reversed(band.low)], frame) + "Z", class_=f"band c{color}")


def _colored(line: Line, frame: Frame, text: Format) -> Markup:
    shape = _shape(line.places, frame, "curve dashed" if line.is_dashed else "curve", line.breaks)
    marks = [
        tag(
            "circle",
            tag("title", f"{line.label}\n{text(y)} at {x:,.0f}"),
            cx=frame.x(x),
            cy=frame.y(y),
            r=7,
            class_="hit",
        )
        for x, y in thinned(line.places, MARKED)
    ]
    few = (
        [tag("circle", cx=frame.x(x), cy=frame.y(y), r=3, class_="dot") for x, y in line.places]
        if len(line.places) <= 30 and not line.is_dashed
        else []
    )
    return tag("g", shape, few, marks, class_=f"line c{line.color}", data_line=f"{line.color}")


def _circle(dot: Dot, frame: Frame) -> Markup:
    x, y = frame.x(dot.x), frame.y(dot.y)
    return tag(
        "circle",
        tag("title", dot.label),
        cx=x,
        cy=y,
        r=7 if dot.kind == "best" else 5,
        class_=f"point {dot.kind}",
        fill=dot.fill or None,
    )


def _interval(dot: Dot, frame: Frame) -> Markup:
    low, high = dot.ends or (dot.y, dot.y)
    x = frame.x(dot.x)
    return tag("line", x1=x, x2=x, y1=frame.y(low), y2=frame.y(high), class_="axis")


def _cross(place: Place | None, frame: Frame) -> list[Markup]:
    if place is None:
        return []
    x, y = frame.x(place[0]), frame.y(place[1])
    return [
        tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="resumed"),
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="resumed"),
    ]


def _words(dots: Sequence[Dot], frame: Frame) -> list[Markup]:
    """What is written beside the points, the first where there is most room for it."""
    at = [(frame.x(dot.x), frame.y(dot.y)) for dot in dots]
    room = Room(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, at)
    parts = []
    for dot, place in zip(dots, at, strict=True):
        if dot.mark:
            label = room.place(dot.mark, place)
            if label.is_far:
                parts.append(tag("line", x1=place[0], y1=place[1], x2=label.x, y2=label.y - 4, class_="leader"))
            kind = "mark" if dot.kind in ("best", "front") else "name"
            parts.append(tag("text", dot.mark, x=label.x, y=label.y, text_anchor=label.anchor, class_=kind))
    return parts


def svg(title: str, parts: Sequence[Markup], height: float = HEIGHT) -> Markup:
    """A whole picture."""
    return tag("svg", parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=title, class_="chart")
