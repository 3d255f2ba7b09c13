"""Reports of a scale study's findings: the answer, the page, the note, and the result in a notebook."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from paceline.batch_scaling.answer import headline, tiles
from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.mlflow_record import note_of
from paceline.batch_scaling.report_page import report_html
from paceline.batch_scaling.result import ScaleResult
from paceline.batch_scaling.texts import count_text
from support.batch_scaling.findings import GROWING, OWN, SIZES, findings
from support.bench.study_fields import study_fields
from support.reports.page import Node, page_from, parsed, sections
from support.toys import toy_config

HOSTILE = "<script>alert('x')</script>"


def page_of(found: ScaleFindings, name: str = "toy", recommended: str | None = None) -> Node:
    return page_from(report_html(name, "id", found, recommended, 83.0).decode())


def critical_tile(critical: CriticalBatch) -> tuple[str, str]:
    """The figure of the critical batch size, and the note below it."""
    found = {tile.label: tile for tile in tiles(replace(findings(), critical=critical))}["critical batch size"]
    return found.figure, found.note


def marked(page: Node) -> list[tuple[str, str]]:
    """Batch size and workers of the recommended rows."""
    rows = page.all("tr", data_recommended=None)
    return [(row.attributes["data-batch-size"], row.attributes["data-workers"]) for row in rows]


def test_the_page_has_the_answer_each_batch_size_and_the_config() -> None:
    found = findings()
    page = page_of(found, recommended="# the recommended config\nname: toy")
    assert sections(page) == ["sizes", "pictures", "branches", "verified", "notes", "config"]
    body = page.one("body").attributes
    assert (body["data-kind"], body["data-id"], body["data-status"]) == ("scale", "id", "finished")
    assert page.classes("headline")[0].attributes["data-value"] == "2.2"
    assert "1 min 23 s" in page.one("header").text
    rows = page.one(id="sizes").all("tr", data_batch_size=None)
    for row, expected in zip(rows, found.table, strict=True):
        assert row.values[:2] == [expected.global_batch_size, expected.workers]
        assert row.values[3:7] == pytest.approx(
            [expected.samples, expected.steps, expected.seconds, expected.worker_seconds]
        )
        assert ("data-extrapolated" in row.attributes) == expected.is_extrapolated
    assert marked(page) == [("128", "2")]
    assert len(page.classes("chart")) == 3
    assert "data.global_batch_size=128" in page.text
    assert "# the recommended config" in page.one(id="config").text
    assert [note.text for note in page.all(data_note="")] == [" ".join(note.split()) for note in found.notes]


def test_the_page_has_the_branches_and_what_was_verified() -> None:
    found = findings()
    page = page_of(found)
    rows = page.one(id="branches").all("tr", data_batch_size=None)
    for row, branch in zip(rows, found.branches, strict=True):
        assert (row.attributes["data-rule"], row.values[0]) == (branch.rule, branch.start_samples)
        assert row.values[-1] == pytest.approx(branch.efficiency)
    assert len(page.one(id="branches").all(data_state="diverged")) == 1
    verified = page.one(id="verified").all("tr", data_batch_sizes=None)
    assert [row.attributes["data-batch-sizes"] for row in verified] == [str(OWN), "128"]
    assert [row.values[2] for row in verified] == pytest.approx([each.seconds for each in found.verifications])


def test_what_was_not_measured_is_not_shown() -> None:
    bare = replace(findings(), table=(), branches=(), critical=None, noise=(), verifications=(), notes=(), speedup=None)
    bare = replace(bare, recommended={}, measured_seconds=None, undecided="no step could be measured")
    page = page_of(bare)
    assert sections(page) == ["pictures"]
    assert page.classes("chart") == []
    assert "data-value" not in page.classes("headline")[0].attributes
    assert "no step could be measured" in headline(bare)


def test_a_critical_batch_size_is_a_number_also_below_one_sample_but_not_beyond_all() -> None:
    assert (count_text(0.125), count_text(39.6), count_text(1024.0)) == ("0.12", "40", "1,024")
    small = CriticalBatch(0.125, 0.125, 420.0, ((0, 420.0), (4_000, 0.125)))
    assert critical_tile(small) == ("0.12", "0.12 to 420 over training")
    beyond = CriticalBatch(inf, 400.0, inf, ((0, 400.0), (4_000, inf)))
    assert critical_tile(beyond)[0] == "not reached"
    assert "inf" not in page_of(replace(findings(), critical=beyond)).one("main").text.split()


def test_a_batch_size_that_grows_marks_each_of_its_sizes() -> None:
    page = page_of(replace(findings(), recommended=GROWING))
    assert marked(page) == [("64", "2"), ("256", "2")]
    assert 'data.batch_size_schedule=[{"samples": 0, "global_batch_size": 64}' in page.text


def test_names_that_are_markup_stay_text_everywhere() -> None:
    found = findings(HOSTILE)
    page = page_of(found, HOSTILE, f"# {HOSTILE}")
    assert page.text.count(HOSTILE) > 4
    assert "<script" not in note_of(HOSTILE, found)


def test_the_result_shows_itself_as_table_frame_and_json(tmp_path: Path) -> None:
    report = str(tmp_path / "report.html")
    fields = study_fields(toy_config(), tmp_path, report=report)
    result = ScaleResult(scale_id="id", findings=findings(), **fields)
    rows = [row.cells for row in parsed(result._repr_html_()).all("tr") if len(row.cells) > 2]
    assert [row[0] for row in rows][::3] == [str(size) for size in SIZES]
    assert result.to_json()["report_path"] == dict(result.rows())["report"] == report
    assert list(result.df["global_batch_size"].unique()) == SIZES
