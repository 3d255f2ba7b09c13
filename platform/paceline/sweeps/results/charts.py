"""Pictures of a sweep: curves of the best settings, the importance of the axes, and the Pareto front of two metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from paceline.direction import default_mode
from paceline.reports import theme
from paceline.reports.figure import Picture, dress, plain
from paceline.reports.line_chart import add_hover, label_log
from paceline.reports.row_charts import bar_chart
from paceline.reports.text import number_text
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.curves import Curve, Values, places_of
from paceline.sweeps.results.heatmap import direction_text, known_objective, nothing_to_draw_text
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trial import Trial, axis_keys

NAME_WIDTH = 38
LOG_FROM = 10.0
"""A metric that falls by this factor, such as a loss, is drawn by its logarithm."""
BEGINNING = 0.1
"""Share of the samples in which nearly every metric comes from far off: it may leave the frame."""
FEW_POINTS = 40
"""Up to this many points, each one gets a marker."""
MOST_BARS = 15
FEW_SETTINGS = 20
MOST_LABELS = 12
"""Up to this many settings of a Pareto front are named."""
FAR_OFF = 3.0
"""A setting this many times as far from the front as others spread is left out of the frame."""


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


def pareto(
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    x: str | Objective | None = None,
    y: str | Objective | None = None,
) -> Picture:
    """Every setting's means of two metrics; those which no other setting betters in both are named and joined by steps.

    Args:
        trials: those of the sweep.
        objectives: its metrics, and which way they are better.
        x: the metric to the right; the first objective that is not `y` by default.
        y: the metric upwards; the first objective that is not `x` by default.

    Raises:
        ValueError: a metric is missing or unknown, or no finished trial has both; the message says what there is.
    """
    pair = _pair(trials, objectives, x, y)
    settings = ranking.by_completeness(trials, pair)
    # numbered as the sweep ranks them, whatever is to the right
    ranks = [metric for metric, _ in objectives]
    by_rank = sorted(pair, key=lambda own: ranks.index(own[0]) if own[0] in ranks else len(ranks))
    numbers = places_of(trials, objectives)
    front = sorted(ranking.front(trials, by_rank), key=lambda each: numbers.get(each.trials[0].id, len(trials)))
    if not front:
        that = " and keeps the constraints" if settings.infeasible else ""
        raise ValueError(
            f"no finished trial has both {pair[0][0]} and {pair[1][0]}{that}{nothing_to_draw_text(trials)}"
        )
    picture = Picture(10, 5)
    axes = picture.add_subplot()
    names = labels.short_names(axis_keys(trials))
    every = [*settings.complete, *settings.incomplete, *settings.infeasible]
    inside = _inside(axes, _points(front, pair), _points(every, pair))
    framed = [summary for summary, is_inside in zip(settings.complete, inside, strict=False) if is_inside]
    dots = axes.scatter(*_points(framed, pair), color=theme.FAINT, s=28, label="other settings")
    picture.tip(dots, [_tip(summary, pair, names) for summary in framed])
    if settings.incomplete:
        places = _points(settings.incomplete, pair)
        axes.scatter(*places, facecolor="none", edgecolor=theme.FAINT, s=28, label="fewer seeds finished: not compared")
    if settings.infeasible:
        crosses = axes.scatter(*_points(settings.infeasible, pair), marker="x", color=theme.QUIET, s=28)
        crosses.set_label("infeasible: break a constraint")
        picture.tip(crosses, [_tip(summary, pair, names) for summary in settings.infeasible])
    _draw_front(picture, axes, front, pair, numbers, names)
    axes.set_xlabel(direction_text(pair[0]))
    axes.set_ylabel(direction_text(pair[1]))
    dress(axes)
    axes.margins(0.12)
    outside = int((~inside).sum())
    beyond = f" ({outside} far worse, beyond the frame)" if outside else ""
    title = f"Pareto front: {len(front)} of {len(every)} settings, numbers as in the ranking{beyond}"
    axes.set_title(title, loc="left", fontweight="bold")
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def _inside(
    axes: Axes, front: tuple[list[float], list[float]], every: tuple[list[float], list[float]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Limit the axes to settings that are not so far off that they would press the rest together; returns which these
    are."""
    inside = np.ones(len(every[0]), dtype=bool)
    limits: list[Callable[[float, float], object]] = [axes.set_xlim, axes.set_ylim]
    for best, values, limit in zip(front, map(np.array, every), limits, strict=True):
        first, third = np.percentile(values, [25, 75])
        reach = FAR_OFF * max(max(best) - min(best), float(third - first))
        shown = (values >= min(best) - reach) & (values <= max(best) + reach)
        if reach and not shown.all():
            low, high = values[shown].min(), values[shown].max()
            margin = 0.12 * (high - low)
            limit(low - margin, high + margin)
            inside &= shown
    return inside


def _pair(
    trials: Sequence[Trial], objectives: Sequence[Objective], x: str | Objective | None, y: str | Objective | None
) -> tuple[Objective, Objective]:
    chosen = [None if metric is None else known_objective(metric, trials, objectives) for metric in (x, y)]
    taken = [objective[0] for objective in chosen if objective]
    left = [objective for objective in objectives if objective[0] not in taken]
    for index, objective in enumerate(chosen):
        if objective is None and left:
            chosen[index] = left.pop(0)
    if chosen[0] is None or chosen[1] is None or chosen[0][0] == chosen[1][0]:
        raise ValueError(
            "a Pareto front needs two different metrics (give both, such as x='seconds', y='val/accuracy')"
        )
    return chosen[0], chosen[1]


def _draw_front(
    picture: Picture,
    axes: Axes,
    front: Sequence[SettingSummary],
    pair: Sequence[Objective],
    numbers: Mapping[str, int],
    names: dict[str, str],
) -> None:
    ordered = sorted(front, key=lambda summary: summary.spreads[pair[0][0]].mean)
    xs, ys = _points(ordered, pair)
    # the edge of what some setting reaches
    steps = "steps-pre" if pair[0][1] == "max" else "steps-post"
    axes.plot(xs, ys, drawstyle=steps, color=theme.FRONT, linewidth=1.6)
    points = axes.scatter(xs, ys, color=theme.FRONT, s=49, zorder=3, label="Pareto front")
    picture.tip(points, [_tip(summary, pair, names) for summary in ordered])
    # numbers at the points and their settings beside: neighbours on a front would write over each other
    lines = []
    for summary in front[:MOST_LABELS]:
        number = numbers.get(summary.trials[0].id, "")  # one without the first objective has no place
        point = (summary.spreads[pair[0][0]].mean, summary.spreads[pair[1][0]].mean)
        axes.annotate(str(number), point, (5, 5), textcoords="offset points", fontsize=9, fontweight="bold")
        lines.append(f"{number}  {labels.setting_text(summary.setting, names)}")
    lines += [f"and {len(front) - MOST_LABELS} more"] if len(front) > MOST_LABELS else []
    text = "\n".join(plain(line, 48, indent="    ") for line in lines)
    axes.text(1.02, 1, text, transform=axes.transAxes, va="top", fontsize=8, linespacing=1.5)


def _tip(summary: SettingSummary, pair: Sequence[Objective], names: Mapping[str, str]) -> str:
    values = [f"{metric} {number_text(summary.spreads[metric].mean)}" for metric, _ in pair]
    broken = [f"breaks {text}" for text in summary.broken]
    return "\n".join([labels.setting_text(summary.setting, names) or "as configured", *values, *broken])


def _points(settings: Iterable[SettingSummary], pair: Sequence[Objective]) -> tuple[list[float], list[float]]:
    x, y = (metric for metric, _ in pair)
    means = [(summary.spreads[x].mean, summary.spreads[y].mean) for summary in settings]
    return [point[0] for point in means], [point[1] for point in means]
