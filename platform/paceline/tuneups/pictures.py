"""Pictures of a tune-up: speed and memory of each technique, and the split of a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.reports.drawing import tried
from paceline.reports.page import Chart, drawn_chart
from paceline.tuneups.outcome import Findings
from paceline.tuneups.texts import LEAST_SHARE, memory_text, ratio_text, speed_text, technique_speed

if TYPE_CHECKING:
    from paceline.reports.figure import Picture

SPEEDS, SPLIT = "speeds.png", "step_split.png"
PICTURES = {
    SPEEDS: "Speed and peak memory of each technique alone",
    SPLIT: "Time of a step by part",
}
"""Title of each file."""
TOGETHER = "all together"
_WIDEST = 2.0
"""An interval is drawn to so many times its value: of very few builds it has no ends."""


def pictures_of(findings: Findings) -> dict[str, "Picture"]:
    """Return the pictures by file name, see `PICTURES`; those for which nothing was measured are left out."""
    drawn = {SPEEDS: _speeds(findings), SPLIT: _split(findings)}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def charts_of(findings: Findings) -> list[Chart]:
    """Return the pictures for a page."""
    bottleneck = findings.bottleneck
    charts = [
        drawn_chart(lambda: _speeds(findings), PICTURES[SPEEDS]),
        drawn_chart(lambda: _split(findings), PICTURES[SPLIT], bottleneck),
    ]
    return [chart for chart in charts if chart is not None]


def files_of(findings: Findings) -> dict[str, bytes]:
    """Return the pictures as PNG, by file name; one that cannot be drawn is a warning in the log."""
    files = tried(lambda: {name: picture.png() for name, picture in pictures_of(findings).items()}, "a picture")
    return files or {}


def drawn_pictures(findings: Findings) -> list[str]:
    """Return the names of the pictures that `pictures_of` draws, without drawing them."""
    is_measured = findings.speedup is not None or any(each.speedup is not None for each in findings.techniques)
    return [*([SPEEDS] if is_measured else []), *([SPLIT] if findings.split else [])]


def _speeds(findings: Findings) -> "Picture | None":
    """Draw all that is recommended together, and below it each technique that was measured, the fastest first."""
    from paceline.reports import theme
    from paceline.reports.row_charts import Ratio, ratio_chart

    rows = [
        Ratio(
            technique.name,
            technique.speedup,
            *_ends(technique.speedup, technique.speedup_interval if technique.builds else None),
            technique_speed(technique),
            technique.memory_ratio,
            memory_text(technique),
            theme.FRONT if technique.is_recommended else theme.QUIET,
            technique.is_recommended,
        )
        for technique in sorted(findings.techniques, key=lambda each: -(each.speedup or 0.0))
        if technique.speedup is not None
    ]
    if findings.speedup is not None:
        together = Ratio(
            TOGETHER,
            findings.speedup,
            *_ends(findings.speedup, findings.speedup_interval),
            speed_text(findings.speedup, findings.speedup_interval),
            findings.peak_memory_ratio,
            ratio_text(findings.peak_memory_ratio),
            theme.BEST,
            is_strong=True,
        )
        rows.insert(0, together)
    labels = "speed over the baseline's", "peak memory over the baseline's"
    return ratio_chart(PICTURES[SPEEDS], rows, labels) if rows else None


def _split(findings: Findings) -> "Picture | None":
    """Draw the share of a step's time by part, of the baseline and of the recommended config beside it."""
    from paceline.reports.row_charts import bar_chart

    splits = [split for split in (findings.split, findings.recommended_split) if split]
    if not findings.split:
        return None
    shares = {
        part: [split.get(part, 0.0) for split in splits]
        for part in dict.fromkeys([*findings.split, *findings.recommended_split])
    }
    rows = {part: values for part, values in shares.items() if max(values) >= LEAST_SHARE}
    series = ["baseline", "recommended, of its own step"] if findings.recommended_split else []
    return bar_chart(PICTURES[SPLIT], rows, series, "share of the time of a step, in %")


def _ends(value: float, interval: Sequence[float] | None) -> tuple[float, float]:
    low, high = interval or (value, value)
    return max(low, value / _WIDEST), min(high, value * _WIDEST)
