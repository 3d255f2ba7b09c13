"""Pictures of a sweep: a metric over two axes, and what two metrics cost each other."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from paceline.reports import theme
from paceline.reports.figure import Picture, color_map, dress, plain
from paceline.reports.text import number_text
from paceline.sweeps.results import labels, ranking, trial_texts
from paceline.sweeps.results.charts import color_range, direction_text
from paceline.sweeps.results.curves import places_of
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trial import Trial

MOST_TEXTS = 400
"""Up to this many cells, each one says its value."""
MOST_LABELS = 12
"""Up to this many settings of a Pareto front are named."""
MOST_TICKS = 25
FAR_OFF = 3.0
"""A setting this many times as far from the front as others spread is left out of the frame."""


@dataclass(frozen=True)
class Grid:
    """Data of a heatmap: rows upwards, columns to the right."""

    columns: list[Any]
    rows: list[Any]
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    """NaN where no trial finished."""
    texts: dict[tuple[int, int], str]
    settings: dict[tuple[int, int], str]
    """Shown under the pointer, with the text."""
    best: tuple[int, int] | None
    """None where each setting breaks a constraint."""


def heatmap(
    trials: Sequence[Trial], objectives: Sequence[Objective], x: str, y: str, metric: str | Objective | None = None
) -> Picture:
    """A metric over two axes: the mean over the seeds of each setting, the best setting where further axes are varied.

    Args:
        trials: those of the sweep.
        objectives: its metrics, and which way they are better.
        x: the axis to the right, a dotted key or its short name.
        y: the axis upwards.
        metric: which one; the first objective by default. One that is no objective may need its direction with it,
            as in `("val/f1", "max")`.

    Raises:
        ValueError: there is no such axis or metric, or no finished trial has the metric; it says what there is.
    """
    keys = trial_texts.axis_keys(trials)
    column, row = _axis(x, keys), _axis(y, keys)
    if column == row:
        raise ValueError(f"both axes of the heatmap are {column} (choose two of: {', '.join(keys)})")
    objective = _objective(metric or objectives[0], trials, objectives)
    shown = [trial for trial in trials if column in trial.params and row in trial.params]
    grid = _grid(shown, objective, column, row)
    names = labels.short_names(keys)
    picture = Picture(min(4.5 + 0.95 * len(grid.columns), 16), min(2.4 + 0.7 * len(grid.rows), 12))
    axes = picture.add_subplot()
    image = _draw_grid(axes, grid, objective)
    cells = list(grid.texts)
    places = [at for _, at in cells], [at for at, _ in cells]
    squares = axes.scatter(*places, s=900, marker="s", color=theme.FAINT, alpha=0)
    picture.tip(squares, [f"{grid.settings[cell]}\n{grid.texts[cell]}" for cell in cells])
    axes.set_xlim(-0.5, len(grid.columns) - 0.5)
    axes.set_ylim(-0.5, len(grid.rows) - 0.5)
    axes.set_xlabel(plain(names[column]))
    axes.set_ylabel(plain(names[row]))
    others = [names[key] for key in keys if key not in (column, row)]
    axes.set_title(_title(shown, objective, others), loc="left", fontsize=10)
    picture.colorbar(image, ax=axes, label=direction_text(objective))
    return picture


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
        raise ValueError(f"no finished trial has both {pair[0][0]} and {pair[1][0]}{that}{_how_they_stand(trials)}")
    picture = Picture(10, 5)
    axes = picture.add_subplot()
    names = labels.short_names(trial_texts.axis_keys(trials))
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


def _axis(name: str, keys: Sequence[str]) -> str:
    by_name = {short: key for key, short in labels.short_names(keys).items()}
    if name in keys or name in by_name:
        return name if name in keys else by_name[name]
    raise ValueError(f"{name!r} is no axis of the sweep (there are: {', '.join(keys) or 'none yet'})")


def _objective(metric: str | Objective, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Objective:
    name = metric if isinstance(metric, str) else metric[0]
    known = sorted({*ranking.metric_names(trials), *ranking.MEASURES, *(own for own, _ in objectives)})
    if name not in known:
        raise ValueError(f"{name!r} is no metric of the sweep's trials (there are: {', '.join(known)})")
    return ranking.objective_of(metric, objectives) if isinstance(metric, str) else metric


def _pair(
    trials: Sequence[Trial], objectives: Sequence[Objective], x: str | Objective | None, y: str | Objective | None
) -> tuple[Objective, Objective]:
    chosen = [None if metric is None else _objective(metric, trials, objectives) for metric in (x, y)]
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


def _grid(trials: Sequence[Trial], objective: Objective, column: str, row: str) -> Grid:
    best_first = ranking.ranked(trials, [objective])
    if not best_first:
        raise ValueError(f"no finished trial has {objective[0]}{_how_they_stand(trials)}")
    columns, rows = _places(trials, column), _places(trials, row)
    at = {trial.id: _cell(trial, column, row, columns, rows) for trial in trials}
    values, texts = np.full((len(rows), len(columns)), np.nan), {}
    settings = {at[trial.id]: labels.setting_text(trial.setting, {}) for trial in trials}
    for summary in best_first:
        cell = at[summary.trials[0].id]
        if cell not in texts:
            values[cell] = summary.spreads[objective[0]].mean
            texts[cell] = _summary_text(summary, objective[0])
            settings[cell] = labels.setting_text(summary.setting, {})
    states: dict[tuple[int, int], list[str]] = {}
    for trial in trials:
        text = "no value" if trial.state == "finished" else labels.state_text(trial.state)
        states.setdefault(at[trial.id], []).append(plain(text, 13))
    empty = {cell: "\n".join(dict.fromkeys(words)) for cell, words in states.items() if cell not in texts}
    best = None if best_first[0].broken else at[best_first[0].trials[0].id]
    return Grid(list(columns.values()), list(rows.values()), values, {**texts, **empty}, settings, best)


def _summary_text(summary: SettingSummary, metric: str) -> str:
    spread = summary.spreads[metric]
    text = labels.spread_text(spread.mean, spread.std, spread.n).replace(" ± ", "\n± ")
    text += f"\n{spread.n} of {len(summary.trials)}" if spread.n < len(summary.trials) else ""
    return text + ("\ninfeasible" if summary.broken else "")


def _places(trials: Sequence[Trial], key: str) -> dict[Any, Any]:
    """The values of an axis by what tells them apart: numbers ascending, then the others as they first come up."""
    found = {_same(trial.params[key]): trial.params[key] for trial in sorted(trials, key=ranking.place)}
    numbers = sorted(same for same in found if isinstance(same, float))
    return {**{number: found[number] for number in numbers}, **found}


def _same(value: Any) -> float | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return json.dumps(value, sort_keys=True, default=repr)


def _cell(trial: Trial, column: str, row: str, columns: dict[Any, Any], rows: dict[Any, Any]) -> tuple[int, int]:
    return list(rows).index(_same(trial.params[row])), list(columns).index(_same(trial.params[column]))


def _draw_grid(axes: Axes, grid: Grid, objective: Objective) -> AxesImage:
    low, high = color_range(grid.values[np.isfinite(grid.values)].tolist(), objective)
    colors, values = color_map(objective[1]), np.ma.masked_invalid(grid.values)
    image = axes.imshow(values, cmap=colors, aspect="auto", origin="lower", vmin=low, vmax=high)
    for ticks, places_of_axis in ((axes.set_xticks, grid.columns), (axes.set_yticks, grid.rows)):
        shown = range(0, len(places_of_axis), -(-len(places_of_axis) // MOST_TICKS))
        ticks(shown, [plain(labels.value_text(places_of_axis[index])) for index in shown])
    if len(grid.columns) > 8:
        axes.tick_params(axis="x", rotation=45)
    if grid.best is not None:
        row, column = grid.best
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=theme.BEST, linewidth=3))
    if grid.values.size <= MOST_TEXTS:
        _write_texts(axes, grid, image)
    return image


def _write_texts(axes: Axes, grid: Grid, image: AxesImage) -> None:
    size = 9 if max(grid.values.shape) <= 12 else 6
    for (row, column), text in grid.texts.items():
        value = grid.values[row, column]
        red, green, blue, _ = image.cmap(image.norm(value)) if np.isfinite(value) else (1, 1, 1, 1)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        color = "#fefefe" if dark else "#111111" if np.isfinite(value) else theme.QUIET
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)


def _title(trials: Sequence[Trial], objective: Objective, others: Sequence[str]) -> str:
    seeds = max(summary.spreads[objective[0]].n for summary in ranking.aggregate(trials, [objective[0]]))
    first = objective[0] + (f": mean ± standard deviation over {seeds} seeds" if seeds > 1 else "")
    second = f"in each cell the best of {', '.join(others)}" if others else ""
    return "\n".join(plain(line, 56) for line in (first, second) if line)


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


def _how_they_stand(trials: Sequence[Trial]) -> str:
    return f", so there is nothing to draw (of {len(trials)} trials: {trial_texts.counts_text(trials) or 'none'})"
