"""A study as one HTML file: the answer, each batch size, the branches, and the recommended config."""

from dataclasses import dataclass

from paceline.batch_scaling.answer import certainty, changes_text, headline, tiles
from paceline.batch_scaling.findings import ScaleFindings, ScaleRow
from paceline.batch_scaling.pictures import charts_of
from paceline.batch_scaling.texts import (
    critical_text,
    marks_text,
    noise_text,
    recommended_sizes,
    row_time_text,
    seconds_text,
    sizes_text,
    start_text,
    time_text,
)
from paceline.reports.page import Fact, Page, PageSection, render
from paceline.reports.text import counted
from paceline.reports.text import seconds_text as duration_text


@dataclass(frozen=True)
class SizeRow:
    """A row of the table of batch sizes and workers."""

    row: ScaleRow
    time: str
    """With its interval."""
    marks: str
    is_recommended: bool


@dataclass(frozen=True)
class VerifiedRow:
    """A row of the table of trainings to the target."""

    sizes: str
    samples: str
    seconds: float
    is_own: bool


def report_html(
    name: str, scale_id: str, findings: ScaleFindings, recommended: str | None, wall_seconds: float
) -> bytes:
    """Return the file.

    Args:
        recommended: the recommended config as YAML; None where no file can hold it.
        wall_seconds: duration of the study; 0 where it is not known.
    """
    times = "Times to the target, as predicted, with 95 % intervals."
    branches = "Efficiency is the share of the samples that the config's own batch takes for the same gain."
    own = [
        PageSection("sizes", "Each batch size", times) if findings.table else None,
        PageSection("pictures", "At a glance"),
        PageSection("branches", "Branches with larger batches", branches) if findings.branches else None,
        PageSection("verified", "Trainings to the target") if findings.verifications else None,
        PageSection("notes", "Notes") if findings.notes else None,
        PageSection("config", "The recommended config") if recommended else None,
    ]
    page = Page(
        kind="scale",
        name=name,
        id=scale_id,
        status="finished",
        subtitle=counted(len(findings.branches), "branch", "branches")
        + (f" in {duration_text(wall_seconds)}" if wall_seconds else ""),
        tiles=tiles(findings),
        sections=[section for section in own if section is not None],
    )
    return render(
        "scale.html",
        page,
        findings=findings,
        headline=headline(findings),
        changes=changes_text(findings),
        certainty=certainty(findings),
        facts=_facts(findings),
        charts=charts_of(findings),
        rows=_size_rows(findings),
        verified=_verified_rows(findings),
        recommended=recommended,
        start_text=start_text,
        time_text=seconds_text,
    )


def _facts(findings: ScaleFindings) -> list[Fact]:
    known = {
        "target": findings.target.text,
        "critical batch size": critical_text(findings.critical),
        "noise scale": noise_text(findings),
        "learning-rate rule": findings.rules.text,
        "time to the target": time_text(findings),
    }
    return [Fact(label, text) for label, text in known.items() if text]


def _size_rows(findings: ScaleFindings) -> list[SizeRow]:
    sizes = recommended_sizes(findings)
    return [
        SizeRow(
            row,
            row_time_text(row),
            marks_text(findings, row),
            row.global_batch_size in sizes and row.workers == findings.workers,
        )
        for row in findings.table
    ]


def _verified_rows(findings: ScaleFindings) -> list[VerifiedRow]:
    return [
        VerifiedRow(
            sizes_text(each.batch_sizes),
            ", ".join(f"{count:,}" for count in each.samples),
            each.seconds,
            each is findings.verifications[0],
        )
        for each in findings.verifications
    ]
