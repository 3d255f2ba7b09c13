"""A tune-up's pictures as SVG, in the report and as files: speeds, speed against memory, and the split of a step."""

from collections.abc import Sequence

from paceline.runs.report.charts import Axis, Dot, scatter_chart
from paceline.runs.report.html import Markup, tag
from paceline.runs.report.numbers import axis_text, percent_text
from paceline.runs.report.rows import grouped_bar_chart, interval_chart
from paceline.runs.report.scales import spans_decades
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.texts import LEAST_SHARE, interval_text, memory_text, ratio_text, speed_text

SPEEDS, TRADE, SPLIT = "speeds.svg", "speed_memory.svg", "step_split.svg"
PICTURES = {
    SPEEDS: "Speed of each technique alone",
    TRADE: "Speed against peak memory",
    SPLIT: "Where the time of a step goes",
}
"""The files, and what each shows."""
BASELINE, TOGETHER = "baseline", "all together"
_WIDEST = 2.0
"""An interval is drawn to so many times its value at the most: of very few builds it has no ends."""
_NEAR = 0.05
"""What is as near to the baseline in both is named under the mouse alone."""
_STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #5b6472; }
.mark { fill: #1b1f27; font-weight: 650; }
.mark, .name { paint-order: stroke; stroke: #fff; stroke-width: 3px; } .leader { stroke: #5b6472; opacity: .5; }
.grid { stroke: #dfe3e9; } .axis { stroke: #5b6472; } .resumed { stroke: #5b6472; stroke-dasharray: 2 3; }
.point { fill: #5b6472; fill-opacity: .55; }
.point.front, .bar { fill: #2563c9; fill-opacity: 1; } .point.best, .bar.b1 { fill: #d9480f; fill-opacity: 1; }
"""
"""The page's colors by day, for a file that has no page."""


def pictures_of(findings: Findings) -> dict[str, Markup]:
    """The pictures by file name, see `PICTURES`; those for which nothing was measured are left out."""
    drawn = {SPEEDS: speed_chart(findings), TRADE: trade_chart(findings), SPLIT: split_chart(findings)}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def files_of(findings: Findings) -> dict[str, bytes]:
    """The same as whole SVG files."""
    return {name: _file(picture) for name, picture in pictures_of(findings).items()}


def speed_chart(findings: Findings) -> Markup | None:
    """Each technique that was measured, with its interval, the fastest first."""
    rows = []
    for technique in sorted(findings.techniques, key=lambda each: -(each.speedup or 0.0)):
        if technique.speedup is not None:
            words = interval_text(technique.speedup, technique.speedup_interval)
            rows.append(
                (technique.name, technique.speedup, *_ends(technique.speedup, technique.speedup_interval), words)
            )
    strong = {technique.name for technique in findings.techniques if technique.is_recommended}
    return interval_chart(PICTURES[SPEEDS], rows, strong=strong) if rows else None


def trade_chart(findings: Findings) -> Markup | None:
    """Each technique whose speed was measured and whose memory is known, the baseline, and all together."""
    techniques = [
        technique
        for technique in findings.techniques
        if technique.speedup is not None and technique.memory_ratio is not None
    ]
    dots = [_dot(technique, technique.speedup or 1.0, technique.memory_ratio or 1.0) for technique in techniques]
    if findings.speedup is not None and findings.peak_memory_ratio is not None:
        about = f"{TOGETHER}\n{speed_text(findings.speedup, findings.speedup_interval)} the speed\n"
        about += f"{ratio_text(findings.peak_memory_ratio)} the memory"
        ends = _ends(findings.speedup, findings.speedup_interval)
        dots.append(Dot(findings.peak_memory_ratio, findings.speedup, about, "best", TOGETHER, ends=ends))
    if not dots:
        return None
    dots.append(Dot(1.0, 1.0, f"{BASELINE}: the config as it was", "open", BASELINE))
    x, y = [dot.x for dot in dots], [dot.y for dot in dots]
    across = Axis("peak memory over the baseline's", axis_text, spans_decades(x, 3.0))
    upwards = Axis("speed over the baseline's", axis_text, spans_decades(y, 3.0))
    return scatter_chart(PICTURES[TRADE], dots, across, upwards, cross=(1.0, 1.0))


def split_chart(findings: Findings) -> Markup | None:
    """Share of a step's time by part, of the baseline and of the recommended config beside it."""
    splits = [split for split in (findings.split, findings.recommended_split) if split]
    if not findings.split:
        return None
    rows = []
    for part in dict.fromkeys([*findings.split, *findings.recommended_split]):
        shares = [split.get(part, 0.0) for split in splits]
        if max(shares) < LEAST_SHARE:
            continue
        rows.append((part, [(share, percent_text(round(share, 3))) for share in shares]))
    return grouped_bar_chart(PICTURES[SPLIT], rows)


def _dot(technique: TechniqueResult, speed: float, memory: float) -> Dot:
    about = f"{technique.name}: {technique.verdict}\n{speed_text(speed, technique.speedup_interval)} the speed\n"
    kind = "front" if technique.is_recommended else "plain"
    ends = _ends(speed, technique.speedup_interval)
    is_named = technique.is_recommended or abs(speed - 1) > _NEAR or abs(memory - 1) > _NEAR
    name = technique.name if is_named else ""
    return Dot(memory, speed, f"{about}{memory_text(technique)} the memory", kind, name, ends=ends)


def _ends(value: float, interval: Sequence[float] | None) -> tuple[float, float]:
    low, high = interval or (value, value)
    return max(low, value / _WIDEST), min(high, value * _WIDEST)


def _file(picture: Markup) -> bytes:
    """With a ground and a style of its own."""
    opening, content = picture.split(">", 1)
    *_, width, height = opening.partition('viewBox="')[2].partition('"')[0].split()
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    ground = tag("rect", width=width, height=height, fill="#fff")
    style = tag("style", Markup(_STYLE))
    return f"{opening.replace('<svg', f'<svg {size}', 1)}>{style}{ground}{content}\n".encode()
