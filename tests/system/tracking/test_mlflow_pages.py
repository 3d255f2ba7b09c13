"""What a reviewer sees in a real browser: the link that `paceline ui` prints, and MLflow's pages."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

from paceline.sweeps.results.pictures import PICTURES
from paceline.tracking.metrics import VALIDATION_EPOCH as VALIDATION
from paceline.tracking.metrics import axis_metric
from paceline.tracking.tracking_uri import run_url
from paceline.tuneups.pictures import PICTURES as TUNEUP_PICTURES
from support.browser.pages import (
    card,
    open_section,
    require_axes,
    require_lines,
    require_no_markup,
    require_parallel_lines,
    require_pictures,
    require_text,
    whole_note,
)
from support.browser.played_run import hostile
from support.browser.played_sweep import BATCH, LR
from support.browser.served import Served

if TYPE_CHECKING:
    from support.browser.fixtures import Recorded

pytest_plugins = ["support.browser.fixtures"]

SETTINGS = 12


def test_the_printed_link_opens_the_sweeps_charts(page: Page, served: Served) -> None:
    page.goto(served.links["sweep"])
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


def test_the_runs_charts_are_over_the_epochs(page: Page, served: Served) -> None:
    page.goto(served.links["run"])
    for metric, over in (("train/loss", "epoch"), ("val/loss", VALIDATION)):
        curves = card(page, metric)
        require_lines(curves, 1)
        expect(curves.locator(".xtitle")).to_have_text(over)
    expect(card(page, "samples_per_second_overall").locator(".barlayer .point")).to_have_count(1)


def test_the_printed_address_lists_the_experiments_and_the_runs_link_opens_its_page(
    page: Page, recorded: "Recorded", served: Served
) -> None:
    page.goto(served.runs)
    expect(page.get_by_role("link", name="browsed")).to_be_visible()
    page.goto(run_url(served.address, recorded.sweep.experiment_id, recorded.sweep.parent_id))
    whole_note(page)
    assert page.url.endswith("workflowType=machine_learning")


def test_the_sweeps_own_page_answers_with_a_ranked_table_and_pictures(
    page: Page, recorded: "Recorded", served: Served
) -> None:
    page.goto(served.run(recorded.sweep.experiment_id, recorded.sweep.parent_id))
    note = whole_note(page)
    expect(note).to_contain_text(f"{LR}=0.2, {BATCH}=32")
    [table] = note.locator("table").all()
    expect(table.locator("th")).to_have_count(6)
    rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert len(rows) == SETTINGS
    assert [row[0] for row in rows[:-1]] == [str(place) for place in range(1, SETTINGS)]
    assert rows[0][2] == "0.9207 ± 0.0028"
    assert [row[1] for row in rows[:2]] == [f"{LR}=0.2, {BATCH}=32", f"{LR}=0.2, {BATCH}=64"]
    assert rows[-1][0] == ""
    assert "pruned" in rows[-1][4]
    require_pictures(note.locator("img"), len(PICTURES))
    require_text(page, f"RuntimeError: {hostile('failure')}")


@pytest.mark.slow
def test_a_trials_page_has_its_curves(page: Page, recorded: "Recorded", served: Served) -> None:
    child = recorded.sweep.trial_id
    page.goto(served.run(recorded.sweep.experiment_id, child, "model-metrics"))
    for section, metric in (("train", "train/loss"), ("val", "val/accuracy")):
        open_section(page, section)
        require_lines(card(page, metric), 1)


@pytest.mark.slow
def test_markup_in_a_runs_words_is_text_on_mlflows_pages(page: Page, recorded: "Recorded", served: Served) -> None:
    page.goto(served.links["run"])
    require_text(page, hostile("name"))
    about = recorded.sweep.experiment_id, recorded.mlflow_run_id
    page.goto(served.run(*about))
    whole_note(page)
    require_text(page, hostile("name"), hostile("reason"), hostile("command"))
    page.get_by_placeholder("Search parameters").fill("model.path")
    require_text(page, hostile("param"))
    page.goto(served.run(*about, "model-metrics"))
    require_text(page, "<script>alert('name')</script>")
    page.goto(served.run(*about, "artifacts"))
    page.get_by_text("words.md", exact=True).first.click()
    expect(page.get_by_text("Path: ").first).to_contain_text("words.md")
    require_no_markup(page)


@pytest.mark.slow
def test_a_tune_ups_page_answers_and_has_its_pictures(page: Page, recorded: "Recorded", served: Served) -> None:
    page.goto(served.run(*recorded.tuneup_ids))
    note = whole_note(page)
    for figure in ("3.61", "3.50-3.70"):
        expect(note).to_contain_text(figure)
    require_text(page, hostile("technique") + "cache")
    require_pictures(note.locator("img"), len(TUNEUP_PICTURES))
    page.goto(served.run(*recorded.tuneup_ids, "artifacts"))
    for name in TUNEUP_PICTURES:
        page.get_by_text(name, exact=True).first.click()
        require_pictures(page.locator(f"img[alt='{name}']"), 1)
