"""Curves, points and bands over a common axis, each of which may be logarithmic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, NullFormatter, NullLocator, StrMethodFormatter

from paceline.reports import theme
from paceline.reports.figure import Picture, dress, plain
from paceline.reports.line_chart import Place, label_log

LARGE = 1e4
"""Numbers from here on are written as `12k`."""
DASHES = (0, (5, 4))
Marker = Literal["o", "s", "^", "D", "*"]
_SIZES = {"*": 190.0, "o": 34.0}
"""Areas of the markers that differ from the others'."""


@dataclass(frozen=True)
class XYAxis:
    """One of both axes."""

    label: str
    is_log: bool = False
    ticks: Sequence[float] = ()
    """Values with a label of their own; empty for those that fit the axis."""
    low: float | None = None
    high: float | None = None
    """Limits; None leaves room for all that is drawn."""


@dataclass(frozen=True)
class XYCurve:
    """A line through places."""

    name: str
    """In the legend; empty for a part of a curve that is there already."""
    places: Sequence[Place]
    color: str
    is_dashed: bool = False


@dataclass(frozen=True)
class XYPoints:
    """Places with a marker, each of which shows its text under the pointer."""

    name: str
    places: Sequence[Place]
    tips: Sequence[str]
    color: str
    marker: Marker = "o"


@dataclass(frozen=True)
class XYBand:
    """The range between a low and a high value."""

    name: str
    places: Sequence[tuple[float, float, float]]
    """x, low and high of each."""
    color: str


@dataclass(frozen=True)
class XYMark:
    """A thin line across the chart."""

    name: str
    """In the legend."""
    value: float
    is_horizontal: bool = False


def xy_chart(
    title: str,
    axes: tuple[XYAxis, XYAxis],
    curves: Sequence[XYCurve],
    points: Sequence[XYPoints] = (),
    bands: Sequence[XYBand] = (),
    marks: Sequence[XYMark] = (),
) -> Picture:
    """Draw them over each other: bands below, points on top.

    Args:
        title: above the chart.
        axes: the horizontal and the vertical one.
    """
    picture = Picture(7.2, 4.2)
    plot = picture.add_subplot()
    if axes[0].is_log:
        plot.set_xscale("log")
    if axes[1].is_log:
        plot.set_yscale("log")
    for band in bands:
        x, low, high = zip(*band.places, strict=True)
        label = plain(band.name) or None
        plot.fill_between(x, low, high, color=band.color, alpha=0.18, linewidth=0, label=label, zorder=1)
    for mark in marks:
        draw = plot.axhline if mark.is_horizontal else plot.axvline
        line = draw(mark.value, color=theme.QUIET, linewidth=1, linestyle=(0, (2, 3)), label=plain(mark.name), zorder=2)
        picture.tip(line, [mark.name])
    for curve in curves:
        plot.plot(
            *zip(*curve.places, strict=True),
            color=curve.color,
            linewidth=1.7,
            linestyle=DASHES if curve.is_dashed else "solid",
            label=plain(curve.name) or None,
            zorder=3,
        )
    for each in points:
        x, y = zip(*each.places, strict=True)
        drawn = plot.scatter(
            x,
            y,
            s=_SIZES.get(each.marker, 44.0),
            marker=each.marker,
            color=each.color,
            edgecolors=theme.LIGHT["card"],
            linewidths=0.8,
            label=plain(each.name) or None,
            zorder=5 if each.marker == "*" else 4,
        )
        picture.tip(drawn, each.tips)
    _label(plot, axes)
    plot.set_title(plain(title), loc="left", fontsize=10, fontweight="bold")
    dress(plot)
    names = len(plot.get_legend_handles_labels()[1])
    if names:
        picture.legend(loc="outside lower left", ncols=2 if names > 2 else 1, frameon=False, fontsize=9)
    return picture


def _label(plot: Axes, axes: tuple[XYAxis, XYAxis]) -> None:
    plot.set_xlim(axes[0].low, axes[0].high)
    plot.set_ylim(axes[1].low, axes[1].high)
    for axis, described, limits in zip((plot.xaxis, plot.yaxis), axes, (plot.get_xlim(), plot.get_ylim()), strict=True):
        axis.set_label_text(plain(described.label))
        if described.is_log:
            label_log(axis, *limits)
        else:
            axis.set_major_formatter(
                EngFormatter(sep="") if max(map(abs, limits)) >= LARGE else StrMethodFormatter("{x:g}")
            )
        if described.ticks:
            axis.set_ticks(list(described.ticks), [f"{each:,.6g}" for each in described.ticks])
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
