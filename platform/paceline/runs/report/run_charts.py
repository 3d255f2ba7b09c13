"""The curves of a run, those of one unit in one chart."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from paceline.reports.page import Chart, drawn_chart
from paceline.reports.text import counted
from paceline.tracking import metrics
from paceline.tracking.thinned_curves import ThinnedCurve

MOST_CHARTS = 60
MOST_LINES = 6
"""Lines of a chart; further metrics of its group go into another one."""
LEAST_POINTS = 3
"""With fewer, a line shows no more than the table of metrics."""
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
"""Metrics that repeat the axis, or that have one value for each attempt."""
_UNITS = ("seconds", "bytes", "fraction", "percent", "watts", "celsius", "megahertz", "megabytes")


def run_charts(curves: Mapping[str, ThinnedCurve], resumes: Sequence[int] = ()) -> list[Chart]:
    """Draw a chart for each group of metrics of which one has at least `LEAST_POINTS` values.

    Args:
        resumes: the steps after which the run was resumed: they are marked, and the lines of the machine's metrics
            begin again there.
    """
    drawn = {key: curve for key, curve in curves.items() if curve.count > 1 and curve.places and key not in _LEFT_OUT}
    groups = [each for each in _groups(list(drawn)) if any(drawn[key].count >= LEAST_POINTS for key in each[1])]
    charts = [_chart(title, {key: drawn[key] for key in keys}, resumes) for title, keys in groups[:MOST_CHARTS]]
    left = len(groups) - MOST_CHARTS
    more = [Chart(Markup("<p>... and {} more</p>").format(counted(left, "chart")))] if left > 0 else []
    return [*(chart for chart in charts if chart is not None), *more]


def _groups(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Metrics that share a chart: those with one prefix (`step_seconds/`) and one unit."""
    groups: dict[str, list[str]] = {}
    for key in sorted(keys):
        groups.setdefault(_group(key), []).append(key)
    order = {title: place for place, title in enumerate(_FIRST)}
    split = [
        (title if not start else f"{title} ({start // MOST_LINES + 1})", own[start : start + MOST_LINES])
        for title, own in groups.items()
        for start in range(0, len(own), MOST_LINES)
    ]
    return sorted(split, key=lambda item: (order.get(item[0], len(order)), item[0].startswith("system"), item[0]))


def _group(key: str) -> str:
    for title, members in _TOGETHER.items():
        if key in members:
            return title
    prefix, _, last = key.rpartition("/")
    if not prefix or prefix in ("train", "val"):
        return key
    unit = next((unit for unit in _UNITS if unit in last.lower()), "")
    if unit == "bytes":  # the sizes of a disk and of a network's traffic differ by powers of ten
        return f"{prefix}: {next((kind for kind in _SIZES_OF if kind in last.lower()), unit)}"
    if unit:
        return f"{prefix}: {unit}"
    return prefix if any(unit in prefix for unit in _UNITS) else key


def _chart(title: str, curves: Mapping[str, ThinnedCurve], resumes: Sequence[int]) -> Chart | None:
    from paceline.reports.line_chart import ChartLine, line_chart

    dashed = _dashed(curves)
    lines = [ChartLine(key, curve.places, key in dashed, _breaks(key, resumes)) for key, curve in curves.items()]
    odd = sum(curve.odd for curve in curves.values())
    caption = f"without {counted(odd, 'value')} that {'is' if odd == 1 else 'are'} not finite" if odd else ""
    return drawn_chart(lambda: line_chart(title, lines, resumes), title, caption)


def _breaks(key: str, resumes: Sequence[int]) -> Sequence[int]:
    return () if key.startswith(("train/", "val/")) or key == metrics.LR else resumes


def _dashed(curves: Mapping[str, ThinnedCurve]) -> set[str]:
    """Metrics that lie on an earlier one, and would hide it."""
    places = [curve.places for curve in curves.values()]
    same = {key for number, key in enumerate(curves) if places[number] in places[:number]}
    return same | ({metrics.PEAK_MEMORY_BYTES} & curves.keys() if len(curves) > 1 else set())
