"""A sweep, a run and a tune-up in a store of their own, shown by `paceline ui`, and a browser to look at them."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser.chromium import chromium, place, visitor
from browser.played_run import hostile, play_hostile_run
from browser.played_sweep import Played, play_sweep
from browser.played_tuneup import play_tuneup
from browser.served import Served, serve
from paceline.tracking.server import free_port


@dataclass(frozen=True)
class Reviewed:
    """What there is to look at."""

    sweep: Played
    run: Path
    """Folder of a run all of whose words are markup."""
    mlflow_run_id: str
    """MLflow's id of that run."""
    tuneup: Path
    """Folder of a tune-up all of whose names are markup."""
    tuneup_ids: tuple[str, str]
    """MLflow's ids of its experiment and of its run."""
    served: Served


@pytest.fixture(scope="session")
def executable() -> str:
    """The system's Chromium."""
    found = place()
    if found is None:
        pytest.skip("Chromium is not installed; on Debian `apt-get install chromium` does that")
    return found


@pytest.fixture(scope="module")
def reviewed(executable: str, prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    """A sweep, a run and a tune-up, and the server that shows them."""
    folder = tmp_path_factory.mktemp("reviewed")
    shutil.copy(prepared_database, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    sweep = play_sweep(folder / "runs", uri, f"RuntimeError: {hostile('failure')}")
    run, run_id = play_hostile_run(folder / "runs", uri)
    tuneup, *tuneup_ids = play_tuneup(folder / "runs", uri)
    # apart from those of other test processes, which may look for a free one at the same moment
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with serve(folder, free_port(16_000 + 40 * own)) as served:
        yield Reviewed(sweep, run, run_id, tuneup, (tuneup_ids[0], tuneup_ids[1]), served)


@pytest.fixture(scope="module")
def browser(executable: str, reviewed: Reviewed) -> Iterator[Browser]:
    """A browser, opened last and for no longer than its tests: Playwright keeps an event loop going in this thread."""
    with chromium(executable) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a window of its own, in which nothing may open a dialog: markup in what is shown would."""
    context = visitor(browser)
    opened: list[str] = []
    shown = context.new_page()

    def refuse(dialog: object) -> None:
        opened.append(str(getattr(dialog, "message", dialog)))
        dialog.dismiss()  # type: ignore[attr-defined]

    shown.on("dialog", refuse)
    yield shown
    context.close()
    assert opened == []
