"""A tune-up as one HTML file that needs nothing else: the answer, the techniques with their intervals, the config."""

from collections.abc import Sequence

from paceline.runs.report.html import Child, Value, tag
from paceline.runs.report.numbers import counted, seconds_text
from paceline.runs.report.page import page
from paceline.runs.report.parts import Report, Section, code, figure, legend, pill, table
from paceline.tuneups.answer import answer, tiles
from paceline.tuneups.explanations import explanation, shown_techniques
from paceline.tuneups.outcome import Beside, Findings, TechniqueResult
from paceline.tuneups.pictures import PICTURES, SPEEDS, SPLIT, TRADE, pictures_of
from paceline.tuneups.texts import measured_text, quality_text, speed_text, technique_cells

HEADING = (
    ("technique", False),
    ("verdict", False),
    ("speed", True),
    ("measured", True),
    ("memory", True),
    ("why", False),
)
BESIDE = (("technique", False), ("beside", False), ("asked", False), ("seen", False), ("speed", True))
ASKED = {
    "helps": "does it help them?",
    "instead": "is it faster than the other of its kind?",
    "needed": "is it still needed?",
}


def report_html(name: str, tuneup_id: str, findings: Findings, recommended: str | None, wall_seconds: float) -> str:
    """The whole file.

    Args:
        recommended: the recommended config as YAML; None where no file can hold it.
        wall_seconds: what the tune-up took; 0 where that is not known.
    """
    sections = [
        _pictures(findings),
        _techniques(findings),
        *_beside(findings),
        *([Section("config", "The recommended config", code(recommended))] if recommended else []),
        *_notes(findings.notes),
    ]
    measured = sum(technique.speedup is not None for technique in findings.techniques)
    report = Report(
        kind="tune-up",
        name=name,
        id=tuneup_id,
        status="finished",
        subtitle=counted(measured, "technique") + (f" in {seconds_text(wall_seconds)}" if wall_seconds else ""),
        answer=answer(findings),
        tiles=tiles(findings),
        sections=sections,
    )
    return page(report)


def _pictures(findings: Findings) -> Section:
    drawn = pictures_of(findings)
    beside: dict[str, Child] = {
        TRADE: tag(
            "p",
            "Recommended in blue, all of it together in orange, with intervals; without a name: within 5 %.",
        ),
        SPLIT: [_split_legend(findings), tag("p", findings.bottleneck)],
    }
    figures = {name: figure(PICTURES[name], [picture, beside.get(name)]) for name, picture in drawn.items()}
    right = [figures[name] for name in (TRADE, SPLIT) if name in figures]
    order = tag("div", figures.get(SPEEDS), tag("div", right, class_="stack") if right else None, class_="columns")
    note = "Speed is samples a second over the baseline's, with the interval that decided."
    return Section("pictures", "At a glance", order, note)


def _split_legend(findings: Findings) -> Child:
    if not findings.recommended_split:
        return None
    return legend([(0, "the config as it was"), (1, "the recommended one, of its own step")])


def _techniques(findings: Findings) -> Section:
    rows = [_row(technique, findings) for technique in shown_techniques(findings)]
    note = "Against the config as it was, each by itself."
    about = [_attributes(technique) for technique in shown_techniques(findings)]
    shown = table(HEADING, rows, "sortable told", "techniques", about)
    return Section("techniques", "Each technique alone", shown, note)


def _attributes(technique: TechniqueResult) -> dict[str, Value]:
    return {
        "data_technique": technique.name,
        "data_verdict": technique.verdict,
        "data_recommended": technique.is_recommended,
    }


def _row(technique: TechniqueResult, findings: Findings) -> list[tuple[Child, float | None]]:
    name, _, speed, memory = technique_cells(technique)
    why: list[Child] = [explanation(technique, findings)]
    if technique.speedup is not None:
        told = [
            technique.reason,
            *([quality_text(technique.quality)] if technique.quality.difference is not None else []),
        ]
        why.append([tag("br"), tag("span", "; ".join(told), class_="quiet")])
    shown = tag("b", name) if technique.is_recommended else name
    return [
        (shown, None),
        (pill(technique.verdict), None),
        (speed, technique.speedup),
        (measured_text(technique), technique.builds or None),
        (memory, technique.memory_ratio),
        (why, None),
    ]


def _beside(findings: Findings) -> list[Section]:
    if not findings.beside:
        return []
    rows = [_beside_row(each) for each in findings.beside]
    about: list[dict[str, Value]] = [
        {
            "data_technique": each.name,
            "data_beside": " + ".join(each.others),
            "data_question": each.question,
            "data_seen": each.seen,
        }
        for each in findings.beside
    ]
    if findings.speedup is not None:
        speed = speed_text(findings.speedup, findings.speedup_interval)
        last: list[Child] = [
            tag("b", "all together"),
            "nothing: the config as it was",
            "",
            pill("gain"),
            speed,
        ]
        rows.append([(cell, findings.speedup if cell is speed else None) for cell in last])
        about.append({"data_technique": "all together"})
    note = (
        "What gains alone goes together. What was hidden is tried beside it, and what gains nothing any more among the "
        "others is left out. In the order of the trials."
    )
    shown = table(BESIDE, rows, "sortable beside", "beside others", about)
    return [Section("beside", "Beside others", shown, note)]


def _beside_row(beside: Beside) -> list[tuple[Child, float | None]]:
    speed = beside.reason if beside.speedup is None else speed_text(beside.speedup, beside.speedup_interval)
    words = [beside.name, " + ".join(beside.others), ASKED[beside.question]]
    return [*((each, None) for each in words), (beside.seen, None), (speed, beside.speedup)]


def _notes(notes: Sequence[str]) -> list[Section]:
    return (
        [Section("notes", "To be known beside", tag("ul", [tag("li", note, data_note=True) for note in notes]))]
        if notes
        else []
    )
