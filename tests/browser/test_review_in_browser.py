"""What a reviewer sees, in a real browser: the link that `paceline ui` prints, MLflow's pages, and the HTML report."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Reviewed
from browser.pages import (
    card,
    open_section,
    require_axes,
    require_lines,
    require_parallel_lines,
    require_pictures,
    whole_note,
)
from browser.played_run import hostile
from browser.played_sweep import BATCH, LR
from paceline.review.finding import FoundRun
from paceline.review.report.report import write_report
from paceline.study.tuneup.pictures import PICTURES as TUNEUP_PICTURES
from paceline.study.tuneup.reporting import report_html
from paceline.sweeps.results.pictures import PICTURES
from paceline.tracking.metrics import VALIDATION_EPOCH as VALIDATION
from paceline.tracking.metrics import axis_metric
from paceline.tracking.store import run_url
from study.tuneup.found import findings

SETTINGS = 12


def require_no_markup(page: Page) -> None:
    """Nothing of what is shown has become an element; that no dialog was opened is seen to by the page's fixture."""
    assert page.locator("img.hostile, [onerror]").count() == 0
    assert not [text for text in page.locator("script").all_text_contents() if "alert('" in text]


def require_text(page: Page, *words: str) -> None:
    """Each can be read on the page."""
    for each in words:
        expect(page.get_by_text(each).locator("visible=true").first).to_be_visible()
    require_no_markup(page)


# MLflow's pages


def test_the_printed_link_opens_the_sweeps_charts(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.links["sweep"])
    expect(page.get_by_text(f"{2 * SETTINGS} matching runs")).to_be_visible()
    parallel = card(page, "Parallel Coordinates")
    require_parallel_lines(parallel, axes=3)
    expect(parallel).to_contain_text("val/accuracy")
    scatter = card(page, "samples_per_second_overall vs. val/accuracy")
    require_axes(scatter, "samples_per_second_overall", "val/accuracy")
    expect(scatter.locator(".scatterlayer .point")).to_have_count(SETTINGS)  # the seeds of each are one point
    axes = axis_metric(LR), axis_metric(BATCH)
    contour = card(page, f"{axes[0]} vs. {axes[1]} vs. val/accuracy")
    require_axes(contour, *axes)
    expect(contour.locator(".contourlevel path").first).to_be_attached()
    for metric, over in (("train/loss", "epoch"), ("val/accuracy", VALIDATION), ("val/loss", VALIDATION)):
        curves = card(page, metric)
        require_lines(curves, SETTINGS)
        expect(curves.locator(".xtitle")).to_have_text(over)
    require_no_markup(page)


def test_the_runs_charts_are_over_the_epochs(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.links["run"])
    for metric, over in (("train/loss", "epoch"), ("val/loss", VALIDATION)):
        curves = card(page, metric)
        require_lines(curves, 1)
        expect(curves.locator(".xtitle")).to_have_text(over)
    expect(card(page, "samples_per_second_overall").locator(".barlayer .point")).to_have_count(1)


def test_the_printed_address_lists_the_experiments_and_the_runs_link_opens_its_page(
    page: Page, reviewed: Reviewed
) -> None:
    page.goto(reviewed.served.runs)
    expect(page.get_by_role("link", name="browsed")).to_be_visible()
    page.goto(run_url(reviewed.served.address, reviewed.sweep.experiment_id, reviewed.sweep.parent_id))
    whole_note(page)
    assert page.url.endswith("workflowType=machine_learning")


def test_the_sweeps_own_page_answers_with_a_ranked_table_and_pictures(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.run(reviewed.sweep.experiment_id, reviewed.sweep.parent_id))
    note = whole_note(page)
    expect(note).to_contain_text(f"Best: {LR}=0.2, {BATCH}=32 with val/accuracy 0.9207 ± 0.0028")
    [table] = note.locator("table").all()
    expect(table.locator("th")).to_have_text(["#", "setting", "val/accuracy (max)", "samples/s", "state", "seeds"])
    rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert len(rows) == SETTINGS
    assert [row[0] for row in rows[:-1]] == [str(place) for place in range(1, SETTINGS)]
    assert [row[1] for row in rows[:2]] == [f"{LR}=0.2, {BATCH}=32", f"{LR}=0.2, {BATCH}=64"]
    assert rows[-1][0] == ""
    assert "pruned" in rows[-1][4]
    require_pictures(note.locator("img"), len(PICTURES))
    require_text(page, f"RuntimeError: {hostile('failure')}")


def test_a_trials_page_has_its_curves(page: Page, reviewed: Reviewed) -> None:
    child = reviewed.sweep.trials[0].mlflow_run_id
    page.goto(reviewed.served.run(reviewed.sweep.experiment_id, child, "model-metrics"))
    for section, metric in (("train", "train/loss"), ("val", "val/accuracy")):
        open_section(page, section)
        require_lines(card(page, metric), 1)


def test_the_pictures_are_shown_among_the_artifacts(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.run(reviewed.sweep.experiment_id, reviewed.sweep.parent_id, "artifacts"))
    for name in PICTURES:
        page.get_by_text(name, exact=True).first.click()
        require_pictures(page.locator(f"img[alt='{name}']"), 1)


def test_markup_in_a_runs_words_is_text_on_mlflows_pages(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.links["run"])
    require_text(page, hostile("name"))
    about = reviewed.sweep.experiment_id, reviewed.mlflow_run_id
    page.goto(reviewed.served.run(*about))
    whole_note(page)
    require_text(page, hostile("name"), hostile("reason"), hostile("command"))
    page.get_by_placeholder("Search parameters").fill("model.path")
    require_text(page, hostile("param"))
    page.goto(reviewed.served.run(*about, "model-metrics"))
    require_text(page, "<script>alert('name')</script>")
    page.goto(reviewed.served.run(*about, "artifacts"))
    page.get_by_text("words.md", exact=True).first.click()
    expect(page.get_by_text("Path: ").first).to_contain_text("words.md")
    require_no_markup(page)


def test_a_tune_ups_page_answers_and_has_its_pictures(page: Page, reviewed: Reviewed) -> None:
    page.goto(reviewed.served.run(*reviewed.tuneup_ids))
    note = whole_note(page)
    expect(note).to_contain_text("3.61 times as fast (3.50-3.70), val/accuracy equal within 0.01.")
    require_text(page, hostile("technique") + "cache")
    require_pictures(note.locator("img"), len(TUNEUP_PICTURES))
    page.goto(reviewed.served.run(*reviewed.tuneup_ids, "artifacts"))
    for name in TUNEUP_PICTURES:
        page.get_by_text(name, exact=True).first.click()
        require_pictures(page.locator(f"img[alt='{name}']"), 1)


# The HTML report


@pytest.fixture
def alone(page: Page) -> tuple[list[str], list[str]]:
    """What the page asks for, and what it complains of, while there is no network."""
    asked: list[str] = []
    said: list[str] = []
    page.context.set_offline(True)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    return asked, said


def test_a_sweeps_report_opens_without_a_network(
    page: Page, alone: tuple[list[str], list[str]], reviewed: Reviewed, tmp_path: Path
) -> None:
    report = write_report(FoundRun("sweep", reviewed.sweep.folder), tmp_path / "report.html")
    page.goto(report.as_uri())
    expect(page.locator("#ranking table")).to_be_visible()
    boxes = [chart.bounding_box() for chart in page.locator("svg").all()]
    assert sum(box is not None and box["width"] > 200 and box["height"] > 100 for box in boxes) >= 2
    require_text(page, hostile("failure"))
    assert alone == ([report.as_uri()], [])


def test_a_runs_report_shows_markup_as_text(
    page: Page, alone: tuple[list[str], list[str]], reviewed: Reviewed, tmp_path: Path
) -> None:
    report = write_report(FoundRun("run", reviewed.run), tmp_path / "report.html")
    page.goto(report.as_uri())
    assert page.locator("svg").count() > 0
    require_text(page, hostile("name"), hostile("reason"), hostile("metric"))
    assert alone == ([report.as_uri()], [])


SIZES = [(1600, 1000), (390, 844)]
"""Of windows: a desk's, and a phone's."""
_OVERLAPS = """svg => {
    const boxes = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    return boxes.filter((box, index) => boxes.slice(index + 1).some(other => over(box, other))).length;
}"""
_CLIPPED = """svg => {
    const whole = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([words, box]) => box.left < whole.left - 1 || box.right > whole.right + 1
            || box.top < whole.top - 1 || box.bottom > whole.bottom + 1).map(([words]) => words);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_tune_ups_report_answers_at_a_glance_in_any_window(
    page: Page, alone: tuple[list[str], list[str]], tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    report = tmp_path / "report.html"
    report.write_text(report_html("digits", "20260101-000000-abcdef", findings(), "name: digits\n", 473.0))
    page.emulate_media(color_scheme=scheme)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.goto(report.as_uri())
        expect(page.locator(".headline")).to_have_text(
            "3.61 times as fast (3.50-3.70), val/accuracy equal within 0.01."
        )
        expect(page.locator(".headline")).to_be_in_viewport()
        charts = page.locator("svg.chart")
        expect(charts).to_have_count(len(TUNEUP_PICTURES))
        for chart in charts.all():
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 300
            assert chart.evaluate(_OVERLAPS) == 0
            assert chart.evaluate(_CLIPPED) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert alone[1] == []


def test_a_tune_ups_report_shows_markup_as_text(
    page: Page, alone: tuple[list[str], list[str]], reviewed: Reviewed, tmp_path: Path
) -> None:
    report = write_report(FoundRun("tune-up", reviewed.tuneup), tmp_path / "report.html")
    page.goto(report.as_uri())
    assert page.locator("svg.chart").count() == len(TUNEUP_PICTURES)
    require_text(page, hostile("technique") + "cache", hostile("reason"))
    assert alone == ([report.as_uri()], [])
