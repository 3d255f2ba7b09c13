"""The HTML report in a real browser: without a network, in any window, and with markup shown as text."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import Page, expect

from paceline.runs.finding import FoundRun
from paceline.runs.report.report import write_report
from paceline.tuneups.pictures import PICTURES as TUNEUP_PICTURES
from paceline.tuneups.report_page import report_html
from support.browser.pages import require_text
from support.browser.played_run import hostile
from support.tuneup.findings import findings

if TYPE_CHECKING:
    from support.browser.fixtures import Recorded

pytest_plugins = ["support.browser.fixtures"]


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
    page: Page, alone: tuple[list[str], list[str]], recorded: "Recorded", tmp_path: Path
) -> None:
    report = write_report(FoundRun("sweep", recorded.sweep.folder), tmp_path / "report.html")
    page.goto(report.as_uri())
    expect(page.locator("#ranking table")).to_be_visible()
    boxes = [chart.bounding_box() for chart in page.locator("svg").all()]
    assert sum(box is not None and box["width"] > 200 and box["height"] > 100 for box in boxes) >= 2
    require_text(page, hostile("failure"))
    assert alone == ([report.as_uri()], [])


def test_a_runs_report_shows_markup_as_text(
    page: Page, alone: tuple[list[str], list[str]], recorded: "Recorded", tmp_path: Path
) -> None:
    report = write_report(FoundRun("run", recorded.run), tmp_path / "report.html")
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
        for figure in ("3.61", "3.50-3.70"):
            expect(page.locator(".headline")).to_contain_text(figure)
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
    page: Page, alone: tuple[list[str], list[str]], recorded: "Recorded", tmp_path: Path
) -> None:
    report = write_report(FoundRun("tune-up", recorded.tuneup), tmp_path / "report.html")
    page.goto(report.as_uri())
    assert page.locator("svg.chart").count() == len(TUNEUP_PICTURES)
    require_text(page, hostile("technique") + "cache", hostile("reason"))
    assert alone == ([report.as_uri()], [])
