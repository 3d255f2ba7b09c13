"""The curves of a run, grouped by what they are about."""

from collections.abc import Mapping, Sequence

from paceline.runs.report.charts import COLORS, Axis, Line, Mark, axis_of, line_chart
from paceline.runs.report.html import Markup, tag
from paceline.runs.report.numbers import counted, formatter
from paceline.runs.report.parts import figure, legend
from paceline.runs.report.run_metrics import OF_TRAINING
from paceline.runs.report.scales import spans_decades
from paceline.tracking import metrics
from paceline.tracking.curves import Curve

MOST_CHARTS = 60
_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "loss": (metrics.VAL_LOSS, metrics.TRAIN_LOSS),
    "memory": (metrics.MEMORY_BYTES, metrics.PEAK_MEMORY_BYTES),
}
"""Metrics of one unit that share a chart, by its title."""
_SIZES_OF = ("disk", "network", "memory")
_FIRST = ("loss", metrics.VAL_ACCURACY, metrics.SAMPLES_PER_SECOND, "memory")
_LEFT_OUT = (
    metrics.EPOCH,
    metrics.VALIDATION_EPOCH,
    metrics.SAMPLES_PER_SECOND_OVERALL,
    *map(metrics.cost_metric, metrics.COSTS),
)
"""What says the same as the axis, and what has one value for each attempt."""
_DASHED = (metrics.PEAK_MEMORY_BYTES,)
"""Those that lie upon another one of their chart."""
LEAST_POINTS = 3
"""With fewer, no line says more than the table does."""
_UNITS = ("seconds", "bytes", "fraction", "percent", "watts", "celsius", "megahertz", "megabytes")


def run_charts(curves: Mapping[str, Curve], resumes: Sequence[int] = ()) -> Markup:
    """A chart for each group of metrics of which one has at least `LEAST_POINTS` values.

    Args:
        resumes: the steps after which the run was resumed: a mark stands there, and the lines of what tells of the
            machine rather than of the model are not drawn across it.
    """
    drawn = {key: curve for key, curve in curves.items() if curve.count > 1 and curve.places and key not in _LEFT_OUT}
    groups = [each for each in _groups(list(drawn)) if any(drawn[key].count >= LEAST_POINTS for key in each[1])]
    if not groups:
        return tag("p", "Too few values were recorded to draw anything.")
    figures = [_chart(title, {key: drawn[key] for key in keys}, resumes) for title, keys in groups[:MOST_CHARTS]]
    left = len(groups) - MOST_CHARTS
    more = tag("p", f"... and {counted(left, 'chart')} more", class_="quiet") if left > 0 else None
    return tag("div", figures, more, class_="columns")


def _breaks(key: str, resumes: Sequence[int]) -> Sequence[int]:
    return () if key.startswith(OF_TRAINING) or key == metrics.LR else resumes


def _dashed(curves: Mapping[str, Curve]) -> set[str]:
    """Metrics that lie upon an earlier one, and would hide it."""
    places = [curve.places for curve in curves.values()]
    same = {key for number, key in enumerate(curves) if places[number] in places[:number]}
    return same | {key for key in _DASHED if key in curves and len(curves) > 1}


def _groups(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Metrics that belong into one chart: those of one room (`step_seconds/`) and one unit."""
    groups: dict[str, list[str]] = {}
    for key in sorted(keys):
        groups.setdefault(_group(key), []).append(key)
    order = {title: place for place, title in enumerate(_FIRST)}
    split = [
        (title if number == 0 else f"{title} ({number + 1})", part)
        for title, own in groups.items()
        for number, part in enumerate(_parts(own))
    ]
    return sorted(split, key=lambda item: (order.get(item[0], len(order)), _is_system(item[0]), item[0]))


def _parts(keys: Sequence[str]) -> list[list[str]]:
    return [list(keys[start : start + COLORS]) for start in range(0, len(keys), COLORS)]


def _group(key: str) -> str:
    for title, members in _TOGETHER.items():
        if key in members:
            return title
    room, _, last = key.rpartition("/")
    if not room or room in ("train", "val"):
        return key
    unit = next((unit for unit in _UNITS if unit in last.lower()), "")
    if unit == "bytes":  # what fills a disk and what a network takes differ by powers of ten
        return f"{room}: {next((kind for kind in _SIZES_OF if kind in last.lower()), unit)}"
    return f"{room}: {unit}" if unit else room if _is_of_one_unit(room) else key


def _is_of_one_unit(room: str) -> bool:
    return any(unit in room for unit in _UNITS)


def _is_system(title: str) -> bool:
    return title.startswith("system")


def _chart(title: str, curves: Mapping[str, Curve], resumes: Sequence[int]) -> Markup:
    dashed = _dashed(curves)
    lines = [
        Line(key, curve.places, number, None, key in dashed, _breaks(key, resumes))
        for number, (key, curve) in enumerate(curves.items())
    ]
    values = [place[1] for line in lines for place in line.places]
    key = next(iter(curves))
    is_loss = "loss" in key
    y = axis_of(key, title, log=is_loss and spans_decades(values, 30.0), cut=True)
    marks = [Mark(step, f"resumed after step {step:,}") for step in resumes]
    chart = line_chart(title, lines, Axis("optimizer step"), y, marks)
    entries = [
        (number, f"{name}{' (dashed)' * (name in dashed)}, last {formatter(name)(curve.newest[1])}")
        for number, (name, curve) in enumerate(curves.items())
    ]
    odd = sum(curve.odd for curve in curves.values())
    caption = f"without {counted(odd, 'value')} that {'is' if odd == 1 else 'are'} not finite" if odd else ""
    return figure(title, [chart, legend(entries)], caption)
