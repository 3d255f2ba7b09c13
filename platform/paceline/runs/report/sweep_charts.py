"""The pictures of a sweep: curves with seeds as bands, the Pareto front, two axes as a grid, and what matters most."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from paceline.runs.report.charts import COLORS, Axis, Band, Dot, Line, axis_of, line_chart, scatter_chart
from paceline.runs.report.html import Child, Markup, tag
from paceline.runs.report.numbers import formatter, percent_text
from paceline.runs.report.parts import caveat, figure, legend, picture
from paceline.runs.report.rows import bar_chart
from paceline.runs.report.scales import spans_decades
from paceline.runs.report.sweep_map import axes_map
from paceline.runs.report.sweep_story import SweepStory
from paceline.runs.report.sweep_table import DOUBT
from paceline.sweeps.results import labels, ranking, trial_texts
from paceline.sweeps.results.curves import Curve, Values, has_samples, panels, places_of
from paceline.sweeps.results.importance import importances
from paceline.sweeps.results.pictures import IMPORTANCE, pareto_pair
from paceline.sweeps.results.ranking import Objective, SettingSummary

MOST_OTHERS = 200
"""Lines in the background of a chart of curves."""
NAMED = 9
"""Settings of a Pareto front that have a number."""
SPEEDS = ("samples_per_second", "seconds")
"""What says little where the trials' speeds cannot be compared."""


def pictures(story: SweepStory) -> Markup:
    """All that there is enough for."""
    recorded = _recorded_importance(story)
    shares = {} if recorded else _shares(story)
    first = [_tried(partial(_curves, story), "the curves"), _tried(partial(_pareto, story), "the Pareto front")]
    # the last two are low: together they are as high as the others
    last = [_tried(partial(axes_map, story, shares), "the map of two axes"), recorded or _importance(story, shares)]
    found = [*filter(None, first), tag("div", last, class_="stack") if any(last) else None]
    if not any(found):
        return tag("p", "Too little has been measured to draw anything.")
    return tag("div", found, class_="columns")


def _tried(make: Callable[[], Child], title: str) -> Child:
    """A picture less is no reason to have no report: values near the largest number overflow in many ways."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except Exception as error:
        return tag("p", f"{title} could not be drawn: {type(error).__name__}: {error}", class_="quiet")


def direction(objective: Objective) -> str:
    """A metric, and which way it is better."""
    metric, mode = objective
    return f"{metric} ({'higher' if mode == 'max' else 'lower'} is better)"


def _recorded_importance(story: SweepStory) -> Markup | None:
    """The picture that the sweep's own run has: to work it out again takes seconds."""
    data = story.told.data(IMPORTANCE)
    title = f"What {story.result.objectives[0][0]} depends on"
    # the picture has the title in itself
    return tag("figure", tag("div", picture(data, title), class_="canvas")) if data else None


def _shares(story: SweepStory) -> dict[str, float]:
    section = story.result.config.sweep
    if section is None:
        return {}
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importances(section, story.result.trials, story.result.objectives[0])
    except Exception:  # a picture less is no reason to have no report
        return {}


def _curves(story: SweepStory) -> list[Markup]:
    result = story.result
    found = panels(result.config, result.trials, result.objectives, story.histories)
    unit = "training samples seen" if has_samples(result.config, result.trials) else "optimizer steps"
    return [_panel(key, curves, unit) for key, curves in found.items()]


def _panel(key: str, curves: Sequence[Curve], unit: str) -> Markup:
    named = [curve for curve in curves if curve.place is not None][:COLORS] or curves[:COLORS]
    rest = [curve for curve in curves if not any(curve is each for each in named)]
    lines = [Line(curve.name, _places(curve.x, curve.mean), None) for curve in rest[:MOST_OTHERS]]
    # the best one on top
    lines += [_named(number, curve) for number, curve in reversed(list(enumerate(named)))]
    is_log = spans_decades([float(value) for curve in named for value in curve.mean])
    chart = line_chart(key, lines, Axis(unit), axis_of(key, log=is_log, cut=True))
    seeds = max((curve.seeds for curve in named), default=1)
    caption = f"mean and range of {seeds} seeds" if seeds > 1 else ""
    entries = [
        (number, f"{curve.place}. {curve.name}" if curve.place else curve.name) for number, curve in enumerate(named)
    ]
    more = tag("p", f"grey: {len(rest)} other settings", class_="quiet") if rest else None
    return figure(key, [chart, legend(entries), more], caption)


def _named(number: int, curve: Curve) -> Line:
    band = Band(_places(curve.x, curve.low), _places(curve.x, curve.high)) if curve.seeds > 1 else None
    return Line(curve.name, _places(curve.x, curve.mean), number, band)


def _places(x: Values, y: Values) -> list[tuple[float, float]]:
    found = [(float(one), float(other)) for one, other in zip(x, y, strict=True)]
    return [place for place in found if math.isfinite(place[1])]


def _pareto(story: SweepStory) -> Markup | None:
    trials, objectives = story.result.trials, story.result.objectives
    pair = pareto_pair(trials, objectives)
    if pair is None:
        return None
    complete, incomplete = ranking.by_completeness(trials, pair)
    places = places_of(trials, objectives)
    front = sorted(ranking.front(trials, pair), key=lambda summary: places[summary.trials[0].id])
    best = {summary.trials[0].id: place < NAMED for place, summary in enumerate(front)}
    dots = [_front_dot(story, summary, pair, places, best) for summary in complete]
    dots += [_dot(story, summary, pair, "open") for summary in incomplete]
    doubt = story.speed_doubt if pair[0][0] in SPEEDS else ""
    sides = direction(pair[0]) + (f" {DOUBT}" if doubt else ""), direction(pair[1])
    x, y = (axis_of(each[0], sides[index], log=_is_log(dots, index)) for index, each in enumerate(pair))
    chart = scatter_chart("Pareto front", dots, x, y, _steps(front, pair))
    names = labels.short_names(trial_texts.axis_keys(trials))
    items = [
        tag("li", labels.setting_text(summary.setting, names) or "as configured", value=places[summary.trials[0].id])
        for summary in front[:NAMED]
    ]
    more = tag("p", f"and {len(front) - NAMED} more", class_="quiet") if len(front) > NAMED else None
    caption = f"{len(front)} of {len(complete) + len(incomplete)} settings that no other one betters in both; "
    caption += "numbers as in the ranking"
    warning = caveat(DOUBT, doubt, "speeds") if doubt else None
    return figure("Pareto front", [chart, tag("ol", items, class_="front-list"), more, warning], caption)


def _is_log(dots: Sequence[Dot], index: int) -> bool:
    return spans_decades([(dot.x, dot.y)[index] for dot in dots], 100.0)


def _front_dot(
    story: SweepStory,
    summary: SettingSummary,
    pair: Sequence[Objective],
    places: Mapping[str, int],
    front: Mapping[str, bool],
) -> Dot:
    """A setting's dot, with its place in the ranking where it is on the front, and one of those that are named."""
    first = summary.trials[0].id
    mark = str(places[first]) if front.get(first) else ""
    return _dot(story, summary, pair, "front" if first in front else "plain", mark)


def _dot(
    story: SweepStory, summary: SettingSummary, pair: Sequence[Objective], kind: str = "plain", mark: str = ""
) -> Dot:
    x, y = (summary.spreads[metric].mean for metric, _ in pair)
    names = labels.short_names(trial_texts.axis_keys(story.result.trials))
    values = [f"{metric}: {formatter(metric)(summary.spreads[metric].mean)}" for metric, _ in pair]
    label = "\n".join([labels.setting_text(summary.setting, names) or "as configured", *values])
    return Dot(x, y, label, kind, mark)


def _steps(front: Sequence[SettingSummary], pair: Sequence[Objective]) -> list[tuple[float, float]]:
    """The edge of what some setting reaches."""
    places = sorted((summary.spreads[pair[0][0]].mean, summary.spreads[pair[1][0]].mean) for summary in front)
    edge = places[:1]
    for (left, below), (right, above) in pairwise(places):
        # a setting reaches all that is worse than itself in both
        edge += [(left, above) if pair[0][1] == "max" else (right, below), (right, above)]
    return edge


def _importance(story: SweepStory, shares: dict[str, float]) -> Markup | None:
    if not shares:
        return None
    metric = story.result.objectives[0][0]
    names = labels.short_names(trial_texts.axis_keys(story.result.trials))
    bars = [
        (labels.shortened(names.get(key, key), 26), share, percent_text(round(share, 3)))
        for key, share in list(shares.items())[:12]
    ]
    caption = f"share of the differences between {len(story.ranked)} settings"
    caption += ": few, so a rough guide" if len(story.ranked) < 20 else ""
    return figure(f"What {metric} depends on", bar_chart("importance", bars), caption)
