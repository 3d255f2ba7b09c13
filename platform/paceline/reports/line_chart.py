"""Lines over a common axis, such as the metrics of a run over its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from paceline.reports import theme
from paceline.reports.figure import Picture, dress, plain
from paceline.reports.text import axis_scale, metric_text

FEW_POINTS = 40
"""Up to this many points, each one has a marker."""
HOVERED = 60
"""Points of a line that show their value under the pointer."""
LOG_FROM = 30.0
"""A loss whose values differ by this factor is drawn by its logarithm."""
MANY_DECADES = 300.0
LARGEST = 1e305

Place = tuple[float, float]
Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class ChartLine:
    """One metric over the steps."""

    name: str
    places: Sequence[Place]
    """Step and value, both finite; the steps ascend."""
    is_dashed: bool = False
    """Seen beside the line that it lies on."""
    breaks: Sequence[float] = ()
    """Steps after which the line begins again."""


def line_chart(title: str, lines: Sequence[ChartLine], marks: Sequence[float] = ()) -> Picture:
    """Draw lines of one unit over the optimizer steps.

    Args:
        title: above the chart.
        lines: at least one with a place.
        marks: steps with a thin vertical line: where a run was resumed.
    """
    drawn = [line for each in lines if (line := _drawable(each)).places]
    values = [value for line in drawn for _, value in line.places]
    key = drawn[0].name
    # the highest value alone may be a peak: the unit is that of most of them
    scale, unit = axis_scale(key, float(np.percentile(np.abs(values), 90)))
    scaled = [value / scale for value in values]
    picture = Picture(7.2, 3.7)
    axes = picture.add_subplot()
    if "loss" in key and min(scaled) > 0 and max(scaled) / min(scaled) >= LOG_FROM:
        axes.set_yscale("log")
        label_log(axes.yaxis, min(scaled), max(scaled))
    else:
        _limit(axes, scaled)
        axes.yaxis.set_major_formatter(EngFormatter(sep="") if max(map(abs, scaled)) >= 1e4 else FuncFormatter(_short))
    for number, line in enumerate(drawn):
        _draw(picture, axes, line, theme.SERIES[number % len(theme.SERIES)], scale)
    for step in marks:
        axes.axvline(step, color=theme.QUIET, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
        picture.tip(axes.axvline(step, color=theme.QUIET, alpha=0, linewidth=9), [f"resumed after step {step:,.0f}"])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("optimizer step")
    axes.set_title(plain(f"{title} ({unit})" if unit else title), loc="left", fontsize=10, fontweight="bold")
    dress(axes)
    picture.legend(loc="outside lower left", ncols=2 if len(drawn) <= 2 else 1, frameon=False, fontsize=9)
    return picture


def _drawable(line: ChartLine) -> ChartLine:
    """Leave out values so near to the largest number that matplotlib overflows."""
    return replace(line, places=[place for place in line.places if abs(place[1]) < LARGEST])


def _draw(picture: Picture, axes: Axes, line: ChartLine, color: str, scale: float) -> None:
    steps, values = np.array([step for step, _ in line.places]), np.array([value for _, value in line.places])
    label = f"{line.name}{' (dashed)' * line.is_dashed}, last {metric_text(float(values[-1]), line.name)}"
    starts = [
        index for index in range(1, len(steps)) if any(steps[index - 1] <= at < steps[index] for at in line.breaks)
    ]
    (curve,) = axes.plot(
        np.insert(steps, starts, [steps[start] for start in starts]),
        np.insert(values / scale, starts, np.nan),
        color=color,
        marker="o" if len(steps) <= FEW_POINTS and not line.is_dashed else None,
        markersize=3.5,
        linewidth=1.7,
        linestyle=(0, (5, 4)) if line.is_dashed else "solid",
        label=plain(label),
        zorder=3,
    )
    picture.tip(curve, [line.name])
    texts = [
        f"{line.name}\n{metric_text(float(value), line.name)} at step {step:,.0f}"
        for step, value in zip(steps, values, strict=True)
    ]
    add_hover(picture, axes, steps, values / scale, texts)


def add_hover(picture: Picture, axes: Axes, x: Values, y: Values, texts: Sequence[str]) -> None:
    """Let some points of a line show their text under the pointer, its extremes among them.

    Args:
        x: of the points.
        y: of the points; those beyond the limits of the axes are left out, as an SVG has no markers there.
        texts: one for each point.
    """
    low, high = axes.get_ylim()
    spread = np.linspace(0, len(x) - 1, min(HOVERED, len(x))).round().astype(int).tolist()
    inside = (y >= low) & (y <= high) if not axes.get_autoscaley_on() else np.isfinite(y)
    chosen = [at for at in sorted({*spread, int(y.argmin()), int(y.argmax())}) if inside[at]]
    if chosen:
        points = axes.scatter(x[chosen], y[chosen], s=110, color=theme.FAINT, alpha=0, zorder=4)
        picture.tip(points, [texts[at] for at in chosen])


def _limit(axes: Axes, values: Sequence[float]) -> None:
    """Leave out values far above nearly all others, such as the last ones of a training that diverged."""
    low, most, high = min(values), float(np.percentile(values, 97)), max(values)
    if len(values) >= 20 and most > low and high - low > 3 * (most - low):
        high = most + 0.3 * (most - low)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    if math.isfinite(high - low):
        axes.set_ylim(0.0 if low >= 0 > low - margin else low - margin, high + margin)


def label_log(axis: Axis, low: float, high: float) -> None:
    """Write numbers at 1, 2 and 5 of each power of ten, or at the powers alone where these are many."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < MANY_DECADES else (1,)))
    axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float, _: object = None) -> str:
    return f"{value:.6g}"
