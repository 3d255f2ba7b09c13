"""The first objective of a sweep over two of its axes: cells, or dots where an axis takes any value."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.runs.report.charts import Axis, Dot, scatter_chart
from paceline.runs.report.heat import Cell, color_of, heat_chart
from paceline.runs.report.html import Markup
from paceline.runs.report.parts import figure
from paceline.runs.report.scales import spans_decades
from paceline.runs.report.sweep_story import SweepStory
from paceline.sweeps.results import labels, ranking, trial_texts
from paceline.sweeps.results.pictures import heatmap_axes
from paceline.sweeps.results.ranking import SettingSummary

MOST_CELLS = 12
"""Values of an axis that have cells of their own; with more it is drawn as a scale."""


def axes_map(story: SweepStory, shares: dict[str, float]) -> Markup | None:
    """The first objective over two axes; None where there are fewer, or no result.

    Args:
        shares: by axis, how much it matters.
    """
    trials, objectives = story.result.trials, story.result.objectives
    pair = heatmap_axes(trials, shares)
    if pair is None or not story.ranked:
        return None
    x, y = pair
    names = labels.short_names(trial_texts.axis_keys(trials))
    shown = [trial for trial in trials if x in trial.overrides and y in trial.overrides]
    best_first = ranking.ranked(shown, objectives[:1])
    values = {axis: _distinct([trial.overrides[axis] for trial in shown]) for axis in pair}
    if not best_first:
        return None
    title = f"{objectives[0][0]} over {names[x]} and {names[y]}"
    if max(map(len, values.values())) > MOST_CELLS:
        numbers = all(labels.is_number(value) for axis in pair for value in values[axis].values())
        return figure(title, _field(story, best_first, x, y), "brighter is better") if numbers else None
    others = [names[key] for key in trial_texts.axis_keys(trials) if key not in pair]
    caption = f"in each cell the best of {', '.join(others)}" if others else "brighter is better"
    words = [[labels.value_text(value) for value in values[axis].values()] for axis in pair]
    return figure(
        title,
        heat_chart(title, words[0], words[1], _cells(story, best_first, pair, values), (names[x], names[y])),
        caption,
    )


def _distinct(found: Sequence[Any]) -> dict[Any, Any]:
    """The values of an axis by what tells them apart: numbers ascending, then the others as they first come up."""
    known = {_same(value): value for value in found}
    ascending = sorted(same for same in known if isinstance(same, float))
    return {**{same: known[same] for same in ascending}, **known}


def _same(value: Any) -> float | str:
    return float(value) if labels.is_number(value) else json.dumps(value, sort_keys=True, default=repr)


def _cells(
    story: SweepStory, best_first: Sequence[SettingSummary], pair: tuple[str, str], values: dict[str, dict[Any, Any]]
) -> dict[tuple[int, int], Cell]:
    metric = story.result.objectives[0][0]
    places = {axis: {same: number for number, same in enumerate(values[axis])} for axis in pair}
    shares = _goodness(story, best_first)
    cells: dict[tuple[int, int], Cell] = {}
    for summary in best_first:
        at = places[pair[1]][_same(summary.setting[pair[1]])], places[pair[0]][_same(summary.setting[pair[0]])]
        if at not in cells:
            spread = summary.spreads[metric]
            words = labels.spread_text(spread.mean, spread.std, spread.n)
            label = "\n".join([labels.setting_text(summary.setting, {}), f"{metric} {words}"])
            cells[at] = Cell(tuple(words.replace(" ± ", "\n± ").split("\n")), label, shares[id(summary)], not cells)
    for trial in story.result.trials:
        if all(axis in trial.overrides for axis in pair):
            at = places[pair[1]][_same(trial.overrides[pair[1]])], places[pair[0]][_same(trial.overrides[pair[0]])]
            state = labels.state_text(trial.state)
            cells.setdefault(at, Cell((state,), f"{labels.setting_text(trial.setting, {})}\n{state}"))
    return cells


def _goodness(story: SweepStory, best_first: Sequence[SettingSummary]) -> dict[int, float]:
    """By setting, from 0 to 1; the few worst ones, which say least, are as dark as those that come next."""
    metric, mode = story.result.objectives[0]
    values = sorted(summary.spreads[metric].mean for summary in best_first)
    low, high = values[0], values[-1]
    first, third = values[len(values) // 4], values[(3 * len(values)) // 4]
    if reach := 3 * (third - first):
        low, high = (max(low, first - reach), high) if mode == "max" else (low, min(high, third + reach))
    extent = high - low
    if not (extent > 0 and math.isfinite(extent)):
        return {id(summary): 1.0 for summary in best_first}
    shares = {id(summary): min(max((summary.spreads[metric].mean - low) / extent, 0.0), 1.0) for summary in best_first}
    return shares if mode == "max" else {key: 1 - share for key, share in shares.items()}


def _field(story: SweepStory, best_first: Sequence[SettingSummary], x: str, y: str) -> Markup:
    metric = story.result.objectives[0][0]
    shares = _goodness(story, best_first)
    names = labels.short_names(trial_texts.axis_keys(story.result.trials))
    dots = []
    for place, summary in reversed(list(enumerate(best_first))):
        spread = summary.spreads[metric]
        words = labels.spread_text(spread.mean, spread.std, spread.n)
        label = f"{labels.setting_text(summary.setting, names)}\n{metric} {words}"
        color, _ = color_of(shares[id(summary)])
        kind, mark = ("filled", "") if place else ("best", "best")
        dots.append(Dot(float(summary.setting[x]), float(summary.setting[y]), label, kind, mark, color))
    across, upwards = (_axis(axis, names, best_first) for axis in (x, y))
    return scatter_chart(f"{metric} over {names[x]} and {names[y]}", dots, across, upwards)


def _axis(axis: str, names: Mapping[str, str], settings: Sequence[SettingSummary]) -> Axis:
    return Axis(names[axis], log=spans_decades([float(each.setting[axis]) for each in settings], 10.0))
