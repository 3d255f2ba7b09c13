"""What is found on MLflow's pages."""

import re

from playwright.sync_api import Locator, Page, expect

from support.browser.chromium import WAIT_MS

expect.set_options(timeout=WAIT_MS)

_LINES = ".scatterlayer .js-line"
_DRAWN = """canvas => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some(value => value > 0);
}"""
_WIDTHS = "images => images.map(image => image.complete ? image.naturalWidth : 0)"


def titled(page: Page, title: str) -> Locator:
    """A chart by its title."""
    return page.get_by_test_id("experiment-view-compare-runs-card").filter(has=page.locator(f'h4[title="{title}"]'))


def card(page: Page, title: str) -> Locator:
    """A chart by its title, brought into view: those that are not are not drawn."""
    chart = titled(page, title)
    chart.scroll_into_view_if_needed()
    return chart


def require_axes(chart: Locator, x: str, y: str) -> None:
    """The chart's axes have these names."""
    expect(chart.locator(".xtitle")).to_have_text(x)
    expect(chart.locator(".ytitle")).to_have_text(y)


def require_lines(chart: Locator, number: int) -> None:
    """So many curves are drawn at least."""
    expect(chart.locator(_LINES).nth(number - 1)).to_be_attached()
    assert all("L" in (line.get_attribute("d") or "") for line in chart.locator(_LINES).all()[:number])


def require_parallel_lines(chart: Locator, axes: int) -> None:
    """So many axes are there, and lines between them are drawn."""
    expect(chart.locator(".dimension")).to_have_count(axes)
    assert any(canvas.evaluate(_DRAWN) for canvas in chart.locator("canvas").all())


def open_section(page: Page, name: str) -> None:
    """Bring a section of a run's charts into view."""
    header = page.get_by_test_id("experiment-view-compare-runs-section-header")
    header.filter(has_text=re.compile(rf"^{name}\b")).scroll_into_view_if_needed()


def whole_note(page: Page) -> Locator:
    """The note of a run's page, unfolded."""
    page.get_by_test_id("show-comment-toggle").click()
    return page.get_by_test_id("note-editor-preview-content")


def require_pictures(images: Locator, number: int) -> None:
    """So many pictures are shown, and all of them have come."""
    expect(images).to_have_count(number)
    for image in images.all():
        image.scroll_into_view_if_needed()
    images.page.wait_for_function("() => [...document.images].every(image => image.complete)")
    assert min(images.evaluate_all(_WIDTHS)) > 300


def require_no_markup(page: Page) -> None:
    """Nothing of what is shown has become an element; that no dialog was opened is seen to by the page's fixture."""
    assert page.locator("img.hostile, [onerror]").count() == 0
    assert not [text for text in page.locator("script").all_text_contents() if "alert('" in text]


def require_text(page: Page, *words: str) -> None:
    """Each can be read on the page."""
    for each in words:
        expect(page.get_by_text(each).locator("visible=true").first).to_be_visible()
    require_no_markup(page)
