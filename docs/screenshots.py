"""Takes the pictures of real runs that are in docs/: `python docs/screenshots.py FOLDER [DOCS]`.

FOLDER is where `paceline sweep` or `paceline tuneup` was run: `mlflow.db` and `runs/` are in it. Those of the newest
sweep and of the newest tune-up are taken, as far as there is one.
"""

import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paceline.runs.finding import FoundRun
from paceline.runs.report.report import write_report
from paceline.sweeps.results.pictures import PICTURES
from paceline.sweeps.results.reopening import sweep_in
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.tuneups.folder import TuneupFolder
from support.browser.chromium import chromium, place, visitor
from support.browser.pages import require_lines, require_parallel_lines, require_pictures, titled, whole_note
from support.browser.served import Served, serve

MOST_BYTES = 300_000
COLORS = 256
PORT = 16_800
SHOT_MS = 120_000.0
TUNEUP_SIZE = 1240, 1420
"""Of a window in which a tune-up's answer and its pictures are seen."""
_SHOW = """(note, place) => {
    for (const code of note.querySelectorAll("code")) code.textContent = code.textContent.replaceAll(place, "");
    note.scrollIntoView();
}"""
"""Brings a note into view; where the folder lies on the machine that took the picture is left out of it."""


def take(folder: Path, docs: Path) -> None:
    """Take all of them of the newest sweep and the newest tune-up in a folder."""
    executable = place()
    assert executable is not None, "Chromium is not installed"
    docs.mkdir(parents=True, exist_ok=True)
    if (sweep := _newest(folder, SweepFolder.FILE)) is not None:
        take_sweep(folder, sweep, docs, executable)
    if (tuneup := _newest(folder, TuneupFolder.FILE)) is not None:
        with chromium(executable) as browser:
            picture = shoot(browser, lambda page: _report(page, FoundRun("tune-up", tuneup), "svg.chart"), *TUNEUP_SIZE)
            save(picture, docs / "tuneup_report.png")


def _newest(folder: Path, file: str) -> Path | None:
    return max(
        (each.parent for each in (folder / "runs").glob(f"*/*/{file}")), key=lambda each: each.name, default=None
    )


def take_sweep(folder: Path, newest: Path, docs: Path, executable: str) -> None:
    """MLflow's view and note of a sweep, and its report."""
    with serve(folder, PORT, ("sweep",)) as served, chromium(executable) as browser:
        shots: dict[str, Callable[[Page], None]] = {
            "review_view": lambda page: _view(page, served),
            "review_note": lambda page: _note(page, served, newest),
            "review_report": lambda page: _report(page, FoundRun("sweep", newest), "#ranking table"),
        }
        for name, show in shots.items():
            save(shoot(browser, show), docs / f"{name}.png")


def shoot(browser: Browser, show: Callable[[Page], None], width: int = 1600, height: int = 1000) -> bytes:
    """What a window of this size shows."""
    with visitor(browser, width, height) as context:
        page = context.new_page()
        show(page)
        return page.screenshot(timeout=SHOT_MS)


def save(picture: bytes, file: Path) -> None:
    """Write it with fewer colours, so that it stays small."""
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(file, optimize=True)
    assert file.stat().st_size < MOST_BYTES, f"{file} has {file.stat().st_size:,} bytes"
    print(file, f"{file.stat().st_size:,} bytes")


def _view(page: Page, served: Served) -> None:
    page.goto(served.links["sweep"])
    page.get_by_role("button", name="Hide banner").click()
    for title in ("train/loss", "val/accuracy"):
        require_lines(titled(page, title), 3)
    require_parallel_lines(titled(page, "Parallel Coordinates"), axes=3)
    page.wait_for_timeout(3000)  # what is drawn moves into place


def _note(page: Page, served: Served, folder: Path) -> None:
    sweep = sweep_in(folder)
    assert sweep.mlflow_url is not None
    page.goto(served.links["sweep"])  # where a reviewer comes from
    titled(page, "Parallel Coordinates").wait_for()
    page.goto(served.address + "/#" + sweep.mlflow_url.partition("#")[2])
    require_pictures(whole_note(page).locator("img"), len(PICTURES))
    page.get_by_test_id("note-editor-preview-content").evaluate(_SHOW, f"{folder.parents[2]}/")
    page.wait_for_timeout(1000)


def _report(page: Page, found: FoundRun, seen: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        report = write_report(found, Path(own) / "report.html")
        page.goto(report.as_uri())
        page.locator(seen).first.wait_for()


if __name__ == "__main__":
    take(Path(sys.argv[1]).absolute(), Path(sys.argv[2] if len(sys.argv) > 2 else "docs"))
