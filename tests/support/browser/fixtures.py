"""A sweep, a run and a tune-up in a store of their own, shown by `paceline ui`, and a browser to look at them.

A plugin: a test file that needs it names it in `pytest_plugins`.
"""

import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, Page

from paceline.tracking.mlflow_server import free_port
from support.browser.chromium import chromium, place, visitor
from support.browser.played_run import hostile, play_hostile_run
from support.browser.played_sweep import Played, play_sweep
from support.browser.played_tuneup import play_tuneup
from support.browser.served import Served, serve


@dataclass(frozen=True)
class Recorded:
    """What there is to look at."""

    folder: Path
    """Where `paceline ui` shows it."""
    sweep: Played
    run: Path
    """Folder of a run all of whose words are markup."""
    mlflow_run_id: str
    """MLflow's id of that run."""
    tuneup: Path
    """Folder of a tune-up all of whose names are markup."""
    tuneup_ids: tuple[str, str]
    """MLflow's ids of its experiment and of its run."""


@pytest.fixture(scope="session")
def executable() -> str:
    """The system's Chromium."""
    found = place()
    if found is None:
        pytest.skip("Chromium is not installed; on Debian `apt-get install chromium` does that")
    return found


@pytest.fixture(scope="session")
def recorded(executable: str, prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A sweep, a run and a tune-up; recorded once for all test processes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "reviewed"
    done = folder / "recorded.pickle"
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            done.write_bytes(pickle.dumps(_record(folder, prepared_database)))
    return pickle.loads(done.read_bytes())  # type: ignore[no-any-return]


def _record(folder: Path, database: Path) -> Recorded:
    folder.mkdir()
    shutil.copy(database, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    sweep = play_sweep(folder / "runs", uri, f"RuntimeError: {hostile('failure')}")
    run, run_id = play_hostile_run(folder / "runs", uri)
    tuneup, *tuneup_ids = play_tuneup(folder / "runs", uri)
    return Recorded(folder, sweep, run, run_id, tuneup, (tuneup_ids[0], tuneup_ids[1]))


@pytest.fixture(scope="module")
def served(recorded: Recorded) -> Iterator[Served]:
    """`paceline ui` on the recorded runs."""
    with serve(recorded.folder, free_port(16_000 + os.getpid() % 10_000)) as running:
        yield running


@pytest.fixture(scope="module")
def browser(executable: str, recorded: Recorded) -> Iterator[Browser]:
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
