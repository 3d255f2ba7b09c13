"""Pictures of a study: efficiency and time over the batch size, and the noise scale over the training."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from paceline.batch_scaling.critical_batch import efficiencies, expected_efficiency
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings, ScaleRow
from paceline.batch_scaling.texts import (
    batch_text,
    count_text,
    recommended_sizes,
    row_time_text,
    seconds_text,
    start_text,
)
from paceline.reports import theme
from paceline.reports.drawing import tried
from paceline.reports.page import Chart, drawn_chart
from paceline.reports.text import counted

if TYPE_CHECKING:
    from paceline.reports.figure import Picture
    from paceline.reports.xy_chart import Marker, XYCurve

EFFICIENCY, TIME, NOISE = "efficiency.png", "time_to_target.png", "noise_scale.png"
PICTURES = {
    EFFICIENCY: "Efficiency of the samples over the batch size",
    TIME: "Time to the target over the batch size",
    NOISE: "Noise scale over the training",
}
"""Title of each file."""
_BEYOND = 4.0
"""A critical batch size is marked up to so many times the largest batch that was tried."""
_CURVE_POINTS = 60
_MOST_TICKS = 12
"""Batch sizes that are named at an axis, at the most."""
_GAP = 4.0
"""A line of noise scales is broken where the next one comes after so many times the usual distance."""
_RULE_COLORS = dict(zip(("linear", "sqrt", "none", "adascale"), theme.SERIES, strict=False))
_START_MARKERS: "tuple[Marker, ...]" = ("o", "s", "^", "D")
_BEST = theme.SERIES[6]


def pictures_of(findings: ScaleFindings) -> dict[str, "Picture"]:
    """Return the pictures by file name, see `PICTURES`; those for which nothing was measured are left out."""
    drawn = {EFFICIENCY: _efficiency(findings), TIME: _time(findings), NOISE: _noise(findings)}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def charts_of(findings: ScaleFindings) -> list[Chart]:
    """Return the pictures for a page."""
    charts = [
        drawn_chart(lambda: _efficiency(findings), PICTURES[EFFICIENCY]),
        drawn_chart(lambda: _time(findings), PICTURES[TIME]),
        drawn_chart(lambda: _noise(findings), PICTURES[NOISE]),
    ]
    return [chart for chart in charts if chart is not None]


def files_of(findings: ScaleFindings) -> dict[str, bytes]:
    """Return the pictures as PNG, by file name; one that cannot be drawn is a warning in the log."""
    files = tried(lambda: {name: picture.png() for name, picture in pictures_of(findings).items()}, "a picture")
    return files or {}


def drawn_pictures(findings: ScaleFindings) -> list[str]:
    """Return the names of the pictures that `pictures_of` draws, without drawing them."""
    has_noise = any(isfinite(point.value) for point in findings.noise)
    measured = {EFFICIENCY: findings.branches, TIME: findings.table, NOISE: has_noise}
    return [name for name, is_drawn in measured.items() if is_drawn]


def _efficiency(findings: ScaleFindings) -> "Picture | None":
    """Draw the branches by learning-rate rule and start, and the trade-off that was found."""
    if not findings.branches:
        return None
    from paceline.reports.xy_chart import XYAxis, XYBand, XYCurve, XYMark, XYPoints, xy_chart

    own = findings.own_batch_size
    found = efficiencies(findings.branches)
    sizes = sorted({own, *(size for _, size in found)})
    starts = sorted({start for start, _ in found})
    points = [XYPoints("the config as it is", [(own, 1.0)], [f"batch {own:,}, as it is"], theme.QUIET)]
    for start, marker in zip(starts, _START_MARKERS, strict=False):
        for rule, color in _RULE_COLORS.items():
            values = {size: rules[rule] for (begun, size), rules in found.items() if begun == start and rule in rules}
            if not values:
                continue
            name = f"{rule}, {start_text(start)}"
            tips = [f"batch {size:,}, {name}: efficiency {value:.2f}" for size, value in values.items()]
            points.append(XYPoints(name, list(values.items()), tips, color, marker))
    curves, bands, marks, critical = [], [], [], findings.critical
    if critical is not None:
        is_near = own / _BEYOND <= critical.size <= _BEYOND * sizes[-1]
        end = max(sizes[-1], critical.size) if is_near else sizes[-1]
        places = [(size, expected_efficiency(size, own, critical.size)) for size in _spread(own, end)]
        curves.append(XYCurve("the trade-off", places, theme.QUIET))
        if is_near:
            marks.append(XYMark(f"critical batch size, {count_text(critical.size)}", critical.size))
            sizes_over_training = [size for size in (critical.low, critical.high) if isfinite(size)]
            if len(set(sizes_over_training)) == 2 and critical.high <= _BEYOND * sizes[-1]:
                band = [(size, 0.0, 1.05) for size in sizes_over_training]
                bands.append(XYBand("critical batch size, range over training", band, theme.QUIET))
    highest = max(1.05, 1.05 * max(value for rules in found.values() for value in rules.values()))
    axes = XYAxis("global batch size", True, _ticks(sizes)), XYAxis("efficiency", low=0.0, high=highest)
    return xy_chart(PICTURES[EFFICIENCY], axes, curves, points, bands, marks)


def _time(findings: ScaleFindings) -> "Picture | None":
    """Draw the predicted time to the target, a line for each number of workers, the interval of that with the config's
    own number, and what was verified."""
    if not findings.table:
        return None
    from paceline.reports.xy_chart import XYAxis, XYBand, XYCurve, XYPoints, xy_chart

    curves: list[XYCurve] = []
    points: list[XYPoints] = []
    bands: list[XYBand] = []
    counts = sorted({row.workers for row in findings.table}, key=lambda count: (count != findings.workers, count))
    for number, count in enumerate(counts):
        rows = sorted((row for row in findings.table if row.workers == count), key=lambda row: row.global_batch_size)
        color = theme.SERIES[number % len(theme.SERIES)]
        curves += _line(counted(count, "worker"), rows, color)
        ends = [(float(row.global_batch_size), *row.seconds_interval) for row in rows if row.seconds_interval]
        if count == findings.workers and ends:
            bands.append(XYBand("95 % interval", ends, color))
        tips = [f"{batch_text([row.global_batch_size], count)}\n{_predicted(row)}" for row in rows]
        points.append(XYPoints("", _places(rows), tips, color))
    if findings.verifications:
        measured = [(float(each.batch_sizes[-1]), each.seconds) for each in findings.verifications]
        tips = [
            f"{batch_text(each.batch_sizes, findings.workers)}\n{seconds_text(each.seconds)}, measured"
            for each in findings.verifications
        ]
        points.append(XYPoints("verified by trainings to the target", measured, tips, theme.INK, "D"))
    seconds, recommended = findings.measured_seconds or findings.predicted_seconds, recommended_sizes(findings)
    if recommended and seconds is not None:
        name = "recommended" if len(recommended) == 1 else f"recommended, growing from {recommended[0]:,}"
        tip = f"recommended: {batch_text(recommended, findings.workers)}"
        points.append(XYPoints(name, [(float(recommended[-1]), seconds)], [tip], _BEST, "*"))
    sizes = sorted({row.global_batch_size for row in findings.table})
    axes = (
        XYAxis("global batch size (dashed: extrapolated)", True, _ticks(sizes)),
        XYAxis("seconds to the target", True),
    )
    return xy_chart(PICTURES[TIME], axes, curves, points, bands)


def _noise(findings: ScaleFindings) -> "Picture | None":
    """Draw the noise scale with its interval, and the critical batch size where it was measured."""
    noise = [point for point in findings.noise if isfinite(point.value) and point.value > 0]
    if not noise:
        return None
    from paceline.reports.xy_chart import XYAxis, XYBand, XYCurve, XYMark, XYPoints, xy_chart

    critical = [
        (float(samples), size)
        for samples, size in (findings.critical.by_samples if findings.critical is not None else ())
        if isfinite(size)
    ]
    ends = [each for point in noise for each in (point.low, point.high) if each is not None and isfinite(each)]
    known = [each for each in (*ends, *(point.value for point in noise), *(size for _, size in critical)) if each > 0]
    # an interval without an end, or that begins at 0, reaches to the edge
    low = min(*known, findings.own_batch_size) / 1.3
    high = max(*known, findings.own_batch_size) * 1.3
    curves, bands = [], []
    for number, part in enumerate(_without_gaps(noise)):
        values = [(float(point.samples), point.value) for point in part]
        band = [(point.samples, max(point.low, low), high if point.high is None else point.high) for point in part]
        curves.append(XYCurve("" if number else "noise scale", values, theme.SERIES[0]))
        bands.append(XYBand("" if number else "its 95 % interval", band, theme.SERIES[0]))
    points = []
    if critical:
        tips = [f"{count_text(size)} {start_text(round(samples))}" for samples, size in critical]
        points.append(XYPoints("critical batch size, from branches", critical, tips, theme.SERIES[1], "D"))
    axes = XYAxis("samples trained on"), XYAxis("samples of a batch", True, low=low, high=high)
    return xy_chart(
        PICTURES[NOISE],
        axes,
        curves,
        points,
        bands,
        [XYMark(f"batch as it is, {findings.own_batch_size:,}", findings.own_batch_size, is_horizontal=True)],
    )


def _without_gaps(noise: Sequence[NoisePoint]) -> list[list[NoisePoint]]:
    """Split the points where none were measured for a while: there, no gradient shows in the noise."""
    usual = median(after.samples - before.samples for before, after in pairwise(noise)) if len(noise) > 1 else 0
    parts = [[noise[0]]]
    for before, after in pairwise(noise):
        if after.samples - before.samples > _GAP * usual:
            parts.append([])
        parts[-1].append(after)
    return parts


def _line(name: str, rows: Sequence[ScaleRow], color: str) -> "list[XYCurve]":
    """Return the parts of a line, dashed where an end is extrapolated."""
    from paceline.reports.xy_chart import XYCurve

    if len(rows) == 1:
        return [XYCurve(name, _places(rows), color)]
    return [
        XYCurve("" if number else name, _places(pair), color, any(row.is_extrapolated for row in pair))
        for number, pair in enumerate(pairwise(rows))
    ]


def _places(rows: Sequence[ScaleRow]) -> list[tuple[float, float]]:
    return [(row.global_batch_size, row.seconds) for row in rows]


def _predicted(row: ScaleRow) -> str:
    named = {"predicted": True, "extrapolated": row.is_extrapolated, "beyond the config's length": not row.is_in_reach}
    return ", ".join([row_time_text(row), *(name for name, holds in named.items() if holds)])


def _ticks(sizes: Sequence[int]) -> list[int]:
    """Return the batch sizes that are named at the axis: without those so near to another that both would overlap."""
    least_ratio = (sizes[-1] / sizes[0]) ** (1 / (_MOST_TICKS - 1))
    ticks: list[int] = []
    for size in sizes:
        if not ticks or size >= ticks[-1] * least_ratio:
            ticks.append(size)
    return ticks


def _spread(low: float, high: float) -> list[float]:
    """Return numbers from one to the other, in equal ratios."""
    return [low * (high / low) ** (number / (_CURVE_POINTS - 1)) for number in range(_CURVE_POINTS)]
