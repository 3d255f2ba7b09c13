"""A metric over two axes of a sweep: cells where both are lists, else a dot for each setting."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from paceline.reports import theme
from paceline.reports.figure import Picture, color_map, dress, plain
from paceline.reports.line_chart import label_log
from paceline.sweeps.results import labels, ranking, result_text
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trial import Trial, axis_keys, planned_order

MOST_TEXTS = 400
"""Up to this many cells, each one says its value."""
MOST_TICKS = 25
MOST_FIELD_TICKS = 12


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
        metric: which one; the first objective by default. Another metric may need its direction with it,
            as in `("val/f1", "max")`.

    Raises:
        ValueError: there is no such axis or metric, or no finished trial has the metric; it says what there is.
    """
    keys = axis_keys(trials)
    column, row = _axis(x, keys), _axis(y, keys)
    if column == row:
        raise ValueError(f"both axes of the heatmap are {column} (choose two of: {', '.join(keys)})")
    objective = known_objective(metric or objectives[0], trials, objectives)
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
    finite = grid.values[np.isfinite(grid.values)].tolist()
    picture.colorbar(image, ax=axes, label=direction_text(objective), extend=_extend(finite, *image.get_clim()))
    return picture


def _axis(name: str, keys: Sequence[str]) -> str:
    by_name = {short: key for key, short in labels.short_names(keys).items()}
    if name in keys or name in by_name:
        return name if name in keys else by_name[name]
    raise ValueError(f"{name!r} is not an axis of the sweep (there are: {', '.join(keys) or 'none yet'})")


def known_objective(metric: str | Objective, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Objective:
    """A metric and which way it is better.

    Raises:
        ValueError: the trials have no such metric, or its direction is not known; it says what there is.
    """
    name = metric if isinstance(metric, str) else metric[0]
    known = sorted({*ranking.metric_names(trials), *ranking.MEASURES, *(own for own, _ in objectives)})
    if name not in known:
        raise ValueError(f"{name!r} is not a metric of the sweep's trials (there are: {', '.join(known)})")
    return ranking.objective_of(metric, objectives) if isinstance(metric, str) else metric


def _grid(trials: Sequence[Trial], objective: Objective, column: str, row: str) -> Grid:
    best_first = ranking.ranked(trials, [objective])
    if not best_first:
        raise ValueError(f"no finished trial has {objective[0]}{nothing_to_draw_text(trials)}")
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
    found = {_same(trial.params[key]): trial.params[key] for trial in sorted(trials, key=planned_order)}
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


def nothing_to_draw_text(trials: Sequence[Trial]) -> str:
    """Return the end of a message about nothing to draw: the number of trials in each state."""
    return f", so there is nothing to draw (of {len(trials)} trials: {result_text.counts_text(trials) or 'none'})"


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
        xs, ys = [to_x[_same(place[0])] for place in data.others], [to_y[_same(place[1])] for place in data.others]
        axes.scatter(xs, ys, marker="x", color=theme.QUIET, s=30, linewidth=1, label="did not finish with a value")
    xs, ys = [to_x[_same(value)] for value in data.x], [to_y[_same(value)] for value in data.y]
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
        best = to_x[_same(data.best[0])], to_y[_same(data.best[1])]
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
    """Return the place of each value: numbers as they are, others side by side as they first come up."""
    distinct = {_same(value): value for value in values}
    axis = axes.xaxis if which == "x" else axes.yaxis
    if not all(labels.is_number(value) for value in distinct.values()):
        axis.set_ticks(range(len(distinct)), [plain(labels.value_text(value)) for value in distinct.values()])
        return {key: float(place) for place, key in enumerate(distinct)}
    places = {key: float(value) for key, value in distinct.items()}
    if is_log:
        axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
        label_log(axis, min(places.values()), max(places.values()))
    if len(places) <= MOST_FIELD_TICKS:
        axis.set_ticks(sorted(places.values()), [labels.value_text(value) for value in sorted(distinct.values())])
        axis.set_minor_locator(NullLocator())
    return places
