"""A tune-up as one HTML file that needs nothing else: the answer, the techniques with their intervals, the config."""

from collections.abc import Sequence

from paceline.review.report.charts import bar_chart, interval_chart
from paceline.review.report.html import Child, Markup, tag
from paceline.review.report.numbers import seconds_text
from paceline.review.report.page import page
from paceline.review.report.parts import Report, Section, code, figure, pill, table
from paceline.study.tuneup.outcome import ArmResult, Findings
from paceline.study.tuneup.texts import arm_cells, interval_text, quality_text, ratio_text, speed_text

HEADING = (("technique", False), ("verdict", False), ("speed", True), ("memory", True), ("quality", False))


def report_html(name: str, tuneup_id: str, findings: Findings, recommended: str | None, wall_seconds: float) -> str:
    """The whole file.

    Args:
        recommended: the recommended config as YAML; None where no file can hold it.
    """
    sections = [
        _techniques(findings),
        *_split(findings),
        *([Section("config", "The recommended config", code(recommended))] if recommended else []),
        *_notes(findings.notes),
    ]
    report = Report(
        kind="tune-up",
        name=name,
        id=tuneup_id,
        status="finished",
        subtitle=f"{sum(arm.speedup is not None for arm in findings.arms)} techniques in {seconds_text(wall_seconds)}",
        answer=_answer(findings),
        tiles=_tiles(findings),
        sections=sections,
    )
    return page(report)


def _answer(findings: Findings) -> Child:
    if not findings.recommended:
        return tag("p", "Nothing that was tried makes it faster.")
    names = ", ".join(arm.name for arm in findings.arms if arm.is_recommended)
    speed = speed_text(findings.speedup, findings.speedup_interval)
    return [
        tag("p", tag("b", f"{speed} the speed"), f" with {names}; {quality_text(findings.quality)}."),
        code("\n".join(f"{key}={value}" for key, value in findings.recommended.items())),
    ]


def _tiles(findings: Findings) -> list[tuple[str, Child, str]]:
    tiles: list[tuple[str, Child, str]] = []
    if findings.recommended and findings.speedup is not None:
        interval = interval_text(findings.speedup, findings.speedup_interval).partition(" ")[2]
        tiles.append(("speed", f"{findings.speedup:.2f} x", interval.strip("()")))
    tiles.append(("noise", f"{findings.noise[0]:.2f}-{findings.noise[1]:.2f} x", "the baseline against itself"))
    if findings.peak_memory_ratio is not None:
        tiles.append(("peak memory", ratio_text(findings.peak_memory_ratio), "of the baseline's"))
    if findings.bottleneck:
        tiles.append(("bottleneck", findings.bottleneck.partition(":")[0], ""))
    return tiles


def _techniques(findings: Findings) -> Section:
    measured = [arm for arm in findings.arms if arm.speedup is not None]
    rows = [_row(arm) for arm in findings.arms]
    note = "Samples a second over the baseline's: the median of pairs of windows that alternate, and its 95 % interval."
    chart = figure("Speed of each technique alone", _chart(measured)) if measured else None
    return Section("techniques", "Each technique alone", [chart, table(HEADING, rows, name="techniques")], note)


def _chart(arms: Sequence[ArmResult]) -> Markup:
    ordered = sorted(arms, key=lambda arm: -(arm.speedup or 0.0))
    rows = []
    for arm in ordered:
        value = arm.speedup or 1.0
        low, high = arm.speedup_interval or (value, value)
        # of very few pairs the interval has no ends
        rows.append((arm.name, value, max(low, value / 2), min(high, value * 2), interval_text(value, (low, high))))
    return interval_chart("Speed of each technique alone", rows)


def _row(arm: ArmResult) -> list[tuple[Child, float | None]]:
    name, _, speed, memory, quality = arm_cells(arm)
    star = [tag("b", name), " (recommended)"] if arm.is_recommended else name
    verdict = pill(arm.verdict)
    return [(star, None), (verdict, None), (speed, arm.speedup), (memory, arm.peak_memory_ratio), (quality, None)]


def _split(findings: Findings) -> list[Section]:
    if not findings.split:
        return []
    bars = [(part, share, f"{share:.0%}") for part, share in findings.split.items()]
    content: list[Child] = [figure("Where the time of a step goes", bar_chart("Where the time of a step goes", bars))]
    if findings.bottleneck:
        content.append(tag("p", findings.bottleneck))
    return [Section("why", "Why it is slow", content, "Of the baseline, as it was.")]


def _notes(notes: Sequence[str]) -> list[Section]:
    return [Section("notes", "To be known beside", tag("ul", [tag("li", note) for note in notes]))] if notes else []
