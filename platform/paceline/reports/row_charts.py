"""Rows below each other: bars, and points with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from paceline.reports import theme
from paceline.reports.figure import Picture, dress, plain, shortened

NAME_WIDTH = 38
LOG_FROM = 4.0
"""Ratios that differ by this factor are drawn by their logarithms."""


@dataclass(frozen=True)
class Ratio:
    """A row of `ratio_chart`."""

    name: str
    value: float
    low: float
    high: float
    """Ends of the interval; infinite where there is none."""
    text: str
    """At the right of the row."""
    other: float | None = None
    """The ratio in the second panel; None leaves it out."""
    other_text: str = ""
    color: str = theme.QUIET
    is_strong: bool = False


def bar_chart(title: str, rows: Mapping[str, Sequence[float]], series: Sequence[str] = (), note: str = "") -> Picture:
    """Draw shares as bars to the right.

    Args:
        rows: by label, its shares from 0 to 1, one for each series.
        series: names of the series, in a legend; none for a single one.
        note: below the axis.
    """
    count = max((len(shares) for shares in rows.values()), default=1)
    picture = Picture(7.2, 1.5 + (0.16 + 0.26 * count) * len(rows))
    axes = picture.add_subplot()
    high = 0.78 / count
    for number in range(count):
        places = [index + (number - (count - 1) / 2) * high for index in range(len(rows))]
        widths = [100 * shares[number] for shares in rows.values()]
        label = plain(series[number]) if series else None
        bars = axes.barh(places, widths, height=0.92 * high, color=theme.SERIES[number], label=label)
        for bar, place, width, name in zip(bars, places, widths, rows, strict=True):
            axes.text(width + 1, place, f"{width:.0f} %", va="center", fontsize=9, color=theme.QUIET)
            picture.tip(bar, [f"{name}: {width:.1f} %"])
    axes.set_yticks(range(len(rows)), [shortened(name, NAME_WIDTH) for name in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(plain(note), color=theme.QUIET)
    axes.set_title(plain(title), loc="left", fontsize=10, fontweight="bold")
    dress(axes, "x")
    if series:
        picture.legend(loc="outside lower left", ncols=count, frameon=False, fontsize=9)
    return picture


def ratio_chart(title: str, rows: Sequence[Ratio], labels: tuple[str, str]) -> Picture:
    """Draw ratios with their intervals beside a line at 1, and a second ratio in a panel of its own.

    Args:
        rows: from top to bottom.
        labels: of both panels.
    """
    has_other = any(row.other is not None for row in rows)
    picture = Picture(10.6 if has_other else 7.2, 1.3 + 0.31 * len(rows))
    panels = picture.subplots(1, 2, sharey=True, width_ratios=(1.5, 1), squeeze=False)[0] if has_other else None
    axes = picture.add_subplot() if panels is None else panels[0]
    for place, row in enumerate(rows):
        low, high = (end if math.isfinite(end) else row.value for end in (row.low, row.high))
        axes.plot([low, high], [place, place], color=row.color, linewidth=1.6, solid_capstyle="butt")
        point = axes.scatter([row.value], [place], s=40, color=row.color, zorder=3)
        picture.tip(point, [f"{row.name}: {row.text}"])
        _write(axes, place, row.text)
    axes.set_yticks(range(len(rows)), [shortened(row.name, NAME_WIDTH) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _scale(axes, [value for row in rows for value in (row.value, row.low, row.high)], labels[0])
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set(color=theme.INK, fontweight="bold" if row.is_strong else "normal")
    if panels is not None:
        for place, row in enumerate(rows):
            if row.other is not None:
                point = panels[1].scatter([row.other], [place], s=40, color=row.color, zorder=3)
                picture.tip(point, [f"{row.name}: {row.other_text}"])
                _write(panels[1], place, row.other_text)
        _scale(panels[1], [row.other for row in rows if row.other is not None], labels[1])
        panels[1].tick_params(axis="y", length=0)
    axes.set_title(plain(title), loc="left", fontsize=10, fontweight="bold")
    return picture


def _write(axes: Axes, place: float, text: str) -> None:
    """Write a row's figures right of its panel."""
    where = axes.get_yaxis_transform()
    axes.text(1.02, place, plain(text), transform=where, va="center", fontsize=9, color=theme.QUIET)


def _scale(axes: Axes, values: Sequence[float], label: str) -> None:
    known = [value for value in [*values, 1.0] if math.isfinite(value)]
    low, high = min(known), max(known)
    if low > 0 and high / low > LOG_FROM:
        axes.set_xscale("log")
        ticks = [tick for tick in (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low / 1.3 <= tick <= high * 1.3]
        axes.set_xticks(ticks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="minor", length=0)
        axes.set_xlim(low / 1.08, high * 1.08)
    else:
        margin = 0.06 * (high - low) or 0.05
        axes.set_xlim(low - margin, high + margin)
    axes.axvline(1.0, color=theme.QUIET, linewidth=1, zorder=1)
    axes.set_xlabel(plain(label))
    dress(axes, "x")
