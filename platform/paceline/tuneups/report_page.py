"""A tune-up as one HTML file: the answer, the techniques with their intervals, and the recommended config."""

from dataclasses import dataclass

from paceline.reports.page import Page, PageSection, render
from paceline.reports.text import counted, seconds_text
from paceline.tuneups.answer import certainty, changes_text, headline, recommended_names, tiles, unhelpful_text
from paceline.tuneups.explanations import explanation, shown_techniques
from paceline.tuneups.outcome import Beside, Findings, TechniqueResult
from paceline.tuneups.pictures import charts_of
from paceline.tuneups.texts import measured_text, quality_text, speed_text, technique_cells

_QUESTIONS = {
    "helps": "does it help them?",
    "instead": "is it faster than the other of its kind?",
    "needed": "is it still needed?",
}


@dataclass(frozen=True)
class TechniqueRow:
    """A row of the table of techniques."""

    technique: TechniqueResult
    verdict: str
    speed: str
    measured: str
    memory: str
    why: str
    more: str
    """Figures behind the reason."""


@dataclass(frozen=True)
class BesideRow:
    """A row of the table of techniques beside others."""

    name: str
    others: str
    question: str
    asked: str
    """The question in words."""
    seen: str
    speed: str
    speedup: float | None


def report_html(name: str, tuneup_id: str, findings: Findings, recommended: str | None, wall_seconds: float) -> bytes:
    """Return the file.

    Args:
        recommended: the recommended config as YAML; None where no file can hold it.
        wall_seconds: duration of the tune-up; 0 where that is not known.
    """
    beside = (
        "Techniques that gain alone are combined. Each hidden one is tried beside the combination, and what gains "
        "nothing among the others is left out. In the order of the measurements."
    )
    speed = (
        "Speed is samples per second over the baseline's, with the interval over builds; with a ~ it was seen in a "
        "build or two, and proves nothing."
    )
    own = [
        PageSection("pictures", "At a glance", speed),
        PageSection("techniques", "Each technique alone", "Compared with the config as it was."),
        PageSection("beside", "Beside others", beside) if findings.beside else None,
        PageSection("config", "The recommended config") if recommended else None,
        PageSection("notes", "Notes") if findings.notes else None,
    ]
    measured = sum(technique.speedup is not None for technique in findings.techniques)
    page = Page(
        kind="tune-up",
        name=name,
        id=tuneup_id,
        status="finished",
        subtitle=counted(measured, "technique") + (f" in {seconds_text(wall_seconds)}" if wall_seconds else ""),
        tiles=tiles(findings),
        sections=[section for section in own if section is not None],
    )
    return render(
        "tuneup.html",
        page,
        findings=findings,
        headline=headline(findings),
        recommended_names=recommended_names(findings),
        changes=changes_text(findings),
        unhelpful=unhelpful_text(findings),
        certainty=certainty(findings),
        charts=charts_of(findings),
        rows=[_row(technique, findings) for technique in shown_techniques(findings)],
        beside=[_beside_row(each) for each in findings.beside],
        speed=speed_text(findings.speedup, findings.speedup_interval),
        recommended=recommended,
    )


def _row(technique: TechniqueResult, findings: Findings) -> TechniqueRow:
    _, verdict, speed, memory = technique_cells(technique)
    more = []
    if technique.speedup is not None:
        more.append(technique.reason)
        if technique.quality.difference is not None:
            more.append(quality_text(technique.quality))
    why = explanation(technique, findings)
    return TechniqueRow(technique, verdict, speed, measured_text(technique), memory, why, "; ".join(more))


def _beside_row(beside: Beside) -> BesideRow:
    speed = beside.reason if beside.speedup is None else f"~{speed_text(beside.speedup, None)}"
    asked, others = _QUESTIONS[beside.question], " + ".join(beside.others)
    return BesideRow(beside.name, others, beside.question, asked, beside.seen, speed, beside.speedup)
