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


SIZES = [(1600, 1000), (390, 844)]
"""Of windows: a coordinator's, and a phone's."""
_COLOR = "name => getComputedStyle(document.body).getPropertyValue(name).match(/\\d+/g).slice(0, 3).map(Number)"
_FILL = "text => getComputedStyle(text).fill.match(/\\d+/g).slice(0, 3).map(Number)"


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


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        *(("run", "light"), ("sweep", "dark"), ("tune-up", "light")),
        pytest.param("run", "dark", marks=pytest.mark.slow),
        pytest.param("sweep", "light", marks=pytest.mark.slow),
        pytest.param("tune-up", "dark", marks=pytest.mark.slow),
    ],
)
def test_a_report_opens_without_a_network_in_any_window(
    page: Page,
    alone: tuple[list[str], list[str]],
    recorded: "Recorded",
    tmp_path: Path,
    kind: Literal["run", "sweep", "tune-up"],
    scheme: Literal["light", "dark"],
) -> None:
    folders = {"run": recorded.run, "sweep": recorded.sweep.folder, "tune-up": recorded.tuneup}
    report = write_report(FoundRun(kind, folders[kind]), tmp_path / "report.html")
    page.emulate_media(color_scheme=scheme)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.goto(report.as_uri())
        expect(page.locator("table").first).to_be_visible()
        boxes = [chart.bounding_box() for chart in page.locator("svg.chart").all()]
        assert boxes
        assert all(box is not None and box["width"] > 200 and box["height"] > 100 for box in boxes)
        ground, ink = (page.evaluate(_COLOR, name) for name in ("background-color", "color"))
        assert (sum(ground) < sum(ink)) == (scheme == "dark")
        texts = page.locator("svg.chart text").first.evaluate(_FILL)
        assert (sum(ground) < sum(texts)) == (scheme == "dark")  # charts follow the theme
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert alone == ([report.as_uri()] * len(SIZES), [])


def test_reports_show_markup_as_text(page: Page, recorded: "Recorded", tmp_path: Path) -> None:
    shown = {
        ("sweep", recorded.sweep.folder): [hostile("failure")],
        ("run", recorded.run): [hostile("name"), hostile("reason"), hostile("metric")],
        ("tune-up", recorded.tuneup): [hostile("technique") + "cache", hostile("reason")],
    }
    for (kind, folder), texts in shown.items():
        page.goto(write_report(FoundRun(kind, folder), tmp_path / f"{kind}.html").as_uri())
        require_text(page, *texts)


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


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_tune_ups_report_answers_at_a_glance_in_any_window(
    page: Page, alone: tuple[list[str], list[str]], tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(report_html("digits", "20260101-000000-abcdef", findings(), "name: digits\n", 473.0))
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
