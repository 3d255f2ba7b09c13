"""Pictures of a sweep that are drawn from prepared data: curves, a map of two axes, and what matters most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullLocator

from paceline.direction import default_mode
from paceline.reports import theme
from paceline.reports.figure import Picture, color_map, dress, plain
from paceline.reports.line_chart import add_hover, label_log
from paceline.reports.row_charts import bar_chart
from paceline.reports.text import number_text
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.curves import Curve, Values
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.trial import Trial

NAME_WIDTH = 38
LOG_FROM = 10.0
"""A metric that falls by this factor, such as a loss, is drawn by its logarithm."""
BEGINNING = 0.1
"""Share of the samples in which nearly every metric comes from far off: it may leave the frame."""
MOST_TICKS = 12
FEW_POINTS = 40
"""Up to this many points, each one gets a marker."""
MOST_BARS = 15
FEW_SETTINGS = 20


@dataclass(frozen=True)
class Field:
    """A metric over two axes of which one at least takes any value: a dot for each setting."""

    x: list[Any]
    y: list[Any]
    values: list[float]
    """Means over the seeds; one for each place of `x` and `y`."""
    others: list[tuple[Any, Any]]
    """The places of trials that have not finished with a value."""
    best: tuple[Any, Any] | None
    """None where each setting breaks a constraint."""


def curves(panels: Mapping[str, Sequence[Curve]], unit: str, title: str = "") -> Picture:
    """A panel for each metric, with a line for each setting and a band from the lowest to the highest of its seeds.

    Args:
        panels: by metric, its curves, those of the best settings first; only those are coloured and named.
        unit: what `x` of the curves counts.
    """
    picture = Picture(3.6 * len(panels) + 3.2, 4.2)
    names = named(panels)
    every_axes = np.atleast_1d(picture.subplots(1, len(panels)))
    for axes, (key, lines) in zip(every_axes, panels.items(), strict=True):
        _draw_panel(picture, axes, key, lines, names, unit)
    seeds = max(line.seeds for lines in panels.values() for line in lines)
    heading = f"{title} (mean and range of up to {seeds} seeds)" if seeds > 1 else title
    picture.suptitle(plain(heading, 100), x=0.01, ha="left", fontweight="bold", fontsize=11)
    picture.legend(handles=_handles(panels, names), loc="outside right upper", frameon=False, fontsize=8.5)
    return picture


def named(panels: Mapping[str, Sequence[Curve]]) -> dict[str, str]:
    """The settings that are named, with their colours: the best ones, or the first where none has finished."""
    every = {line.name: line for lines in panels.values() for line in lines}
    ordered = sorted(every.values(), key=lambda line: (line.place is None, line.place or 0))
    finished = [line for line in ordered if line.place is not None] or ordered
    return {line.name: color for line, color in zip(finished, theme.SERIES, strict=False)}


def limits(lines: Sequence[Curve], names: Mapping[str, str]) -> tuple[float, float]:
    """The lowest and the highest value to show: all of the named settings, and most of what the others have, without
    the beginning."""
    end = max(line.x[-1] for line in lines)
    shown = [line for line in lines if line.name in names] or lines
    low = min(_later(line.x, line.low, end).min() for line in shown)
    high = max(_later(line.x, line.high, end).max() for line in shown)
    rest = [_later(line.x, line.mean, end) for line in lines if line.name not in names]
    if rest:
        bottom, top = np.percentile(np.concatenate(rest), [5, 95])
        # one that diverged would leave the rest no room
        reach = high - low
        low, high = min(low, max(bottom, low - reach)), max(high, min(top, high + reach))
    return float(low), float(high)


def _later(x: Values, values: Values, end: float) -> Values:
    """The values after the beginning; of a short curve the last one."""
    later = values[x >= BEGINNING * end]
    return later if len(later) else values[-1:]


def _draw_panel(
    picture: Picture, axes: Axes, key: str, lines: Sequence[Curve], names: Mapping[str, str], unit: str
) -> None:
    for line in lines:
        if line.name not in names:
            axes.plot(line.x, line.mean, color=theme.FAINT, linewidth=0.8, alpha=0.7, zorder=1)
            picture.tip(axes.plot(line.x, line.mean, color=theme.FAINT, linewidth=9, alpha=0, zorder=1)[0], [line.name])
    for line in reversed(lines):  # the best one on top
        if line.name not in names:
            continue
        color, rank = names[line.name], list(names).index(line.name)
        if line.seeds > 1:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0, zorder=2)
        marker = "o" if len(line.x) <= FEW_POINTS else None
        width = 1.5 + 0.3 * rank  # so that one is seen beside the one that covers it
        (drawn,) = axes.plot(line.x, line.mean, color=color, marker=marker, linewidth=width, zorder=3)
        drawn.set_markersize(2.5 + width / 2)
        picture.tip(drawn, [f"{line.place}. {line.name}" if line.place else line.name])
    _scale(axes, key, lines, names)
    for line in lines:
        if line.name in names:
            name = f"{line.place}. {line.name}" if line.place else line.name
            at = [f"{name}\n{number_text(value)} at {x:,.0f}" for x, value in zip(line.x, line.mean, strict=True)]
            add_hover(picture, axes, line.x, line.mean, at)
    axes.set_xlabel(unit)
    axes.set_title(plain(key, NAME_WIDTH), loc="left", fontsize=10)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    dress(axes)


def _scale(axes: Axes, key: str, lines: Sequence[Curve], names: Mapping[str, str]) -> None:
    shown = [line for line in lines if line.name in names] or lines
    least, most = min(line.mean.min() for line in shown), max(line.mean.max() for line in shown)
    low, high = limits(lines, names)
    if default_mode(key) == "min" and least > 0 and low > 0 and most / least >= LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, max(high, most) * 1.15)
        label_log(axes.yaxis, low, max(high, most))
    else:
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)


def _handles(panels: Mapping[str, Sequence[Curve]], names: Mapping[str, str]) -> list[Line2D]:
    every = {line.name: line for lines in panels.values() for line in lines}
    handles = []
    for name, color in names.items():
        place = every[name].place
        text = plain(f"{place}  {name}" if place else name, NAME_WIDTH, indent="    ")
        handles.append(Line2D([], [], color=color, linewidth=2, label=text))
    if more := len(every) - len(names):
        label = f"{more} other setting{'s' * (more > 1)}"
        handles.append(Line2D([], [], color=theme.FAINT, linewidth=1, label=label))
    return handles


def importance(shares: Mapping[str, float], objective: Objective, settings: int, names: Mapping[str, str]) -> Picture:
    """Draw a bar for each axis.

    Args:
        shares: by axis, 0 to 1, the largest first.
        settings: how many the shares come from.
        names: short names of the axes.
    """
    rows = {names.get(key, key): [share] for key, share in list(shares.items())[:MOST_BARS]}
    few = ": few, so a rough guide" if settings < FEW_SETTINGS else ""
    note = f"share of the differences between settings, in %\n(fANOVA over {settings} finished settings{few})"
    return bar_chart(f"Importance of each axis for {objective[0]}", rows, note=note)


def field_of(trials: Sequence[Trial], objective: Objective, x: str, y: str) -> Field:
    """Prepare the data of `field`.

    Raises:
        ValueError: no finished trial has the objective.
    """
    shown = [trial for trial in trials if x in trial.params and y in trial.params]
    best_first = ranking.ranked(shown, [objective])
    if not best_first:
        raise ValueError(f"no finished trial has {objective[0]}, so there is nothing to draw")
    places = [(summary.setting[x], summary.setting[y]) for summary in best_first]
    valued = {trial.id for summary in best_first for trial in summary.trials}
    others = [(trial.params[x], trial.params[y]) for trial in shown if trial.id not in valued]
    values = [summary.spreads[objective[0]].mean for summary in best_first]
    best = None if best_first[0].broken else places[0]
    return Field([place[0] for place in places], [place[1] for place in places], values, others, best)


def field(data: Field, objective: Objective, names: tuple[str, str], logs: tuple[bool, bool]) -> Picture:
    """A dot for each setting, coloured by its value.

    Args:
        names: of the axes to the right and upwards.
        logs: whether each is drawn by its logarithm.
    """
    picture = Picture(8, 5)
    axes = picture.add_subplot()
    to_x = _place_on(axes, "x", [*data.x, *(place[0] for place in data.others)], logs[0])
    to_y = _place_on(axes, "y", [*data.y, *(place[1] for place in data.others)], logs[1])
    if data.others:
        xs, ys = [to_x[_key(place[0])] for place in data.others], [to_y[_key(place[1])] for place in data.others]
        axes.scatter(xs, ys, marker="x", color=theme.QUIET, s=30, linewidth=1, label="did not finish with a value")
    xs, ys = [to_x[_key(value)] for value in data.x], [to_y[_key(value)] for value in data.y]
    low, high = color_range(data.values, objective)
    colors = color_map(objective[1])
    dots = axes.scatter(xs[::-1], ys[::-1], c=data.values[::-1], cmap=colors, vmin=low, vmax=high, s=75)
    dots.set(edgecolor="#444444", linewidth=0.6)  # the best ones were given last, so that they lie on top
    texts = [
        f"{names[0]}={labels.value_text(x)}, {names[1]}={labels.value_text(y)}\n{objective[0]} {value:.4g}"
        for x, y, value in zip(data.x, data.y, data.values, strict=True)
    ]
    picture.tip(dots, texts[::-1])
    if data.best is not None:
        best = to_x[_key(data.best[0])], to_y[_key(data.best[1])]
        axes.scatter(*best, s=210, facecolor="none", edgecolor=theme.BEST, linewidth=2.5, label="best")
    axes.set_xlabel(plain(names[0]))
    axes.set_ylabel(plain(names[1]))
    axes.set_title(plain(f"{objective[0]} of {len(data.values)} finished settings", 60), loc="left", fontsize=10)
    axes.margins(0.06)
    dress(axes)
    picture.colorbar(dots, ax=axes, label=direction_text(objective), extend=_extend(data.values, low, high))
    if data.best is not None or data.others:
        picture.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return picture


def direction_text(objective: Objective) -> str:
    """Return a metric and its better direction, as the label of an axis."""
    metric, mode = objective
    return plain(f"{metric} (higher is better →)" if mode == "max" else f"{metric} (← lower is better)")


def color_range(values: Sequence[float], objective: Objective) -> tuple[float, float]:
    """The values that the colours tell apart: the worst ones, which say least, may lie beyond it."""
    low, high = min(values), max(values)
    first, third = np.percentile(values, [25, 75])
    reach = 3 * float(third - first)
    if reach:
        low, high = (max(low, first - reach), high) if objective[1] == "max" else (low, min(high, third + reach))
    return float(low), float(high)


def _extend(values: Sequence[float], low: float, high: float) -> str:
    return "min" if min(values) < low else "max" if max(values) > high else "neither"


def _place_on(axes: Axes, which: str, values: Sequence[Any], is_log: bool) -> dict[Any, float]:
    """Where each value is: numbers as they are, others side by side as they first come up."""
    distinct = {_key(value): value for value in values}
    axis = axes.xaxis if which == "x" else axes.yaxis
    if not all(labels.is_number(value) for value in distinct.values()):
        axis.set_ticks(range(len(distinct)), [plain(labels.value_text(value)) for value in distinct.values()])
        return {key: float(place) for place, key in enumerate(distinct)}
    if is_log:
        axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
        label_log(axis, min(distinct), max(distinct))
    if len(distinct) <= MOST_TICKS:
        axis.set_ticks(sorted(distinct), [labels.value_text(distinct[key]) for key in sorted(distinct)])
        axis.set_minor_locator(NullLocator())
    return {key: float(value) for key, value in distinct.items()}


def _key(value: Any) -> Any:
    return float(value) if labels.is_number(value) else repr(value)
