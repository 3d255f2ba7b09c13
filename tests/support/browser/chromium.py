"""The system's Chromium, and the pages that it opens."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000.0
"""How long a page may take to show something, in milliseconds: MLflow's pages are large, and machines are busy."""
_WITHOUT_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""MLflow opens a panel at the first visit, which takes a quarter of the page."""


def place() -> str | None:
    """Where Chromium is; None where it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium(executable: str) -> Iterator[Browser]:
    """A headless Chromium of one's own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, timeout=WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


def visitor(browser: Browser, width: int = 1600, height: int = 1000) -> BrowserContext:
    """Somebody who has been to MLflow before; the window's size is in pixels."""
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(_WITHOUT_ASSISTANT)
    return context
