"""The program that creates the embedded database: it ends with whoever started it, and leaves all or nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.tracking import database, remote
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
from paceline.tracking.store import sqlite_file

CREATION_SECONDS = 250.0
"""Ten on an idle machine, at the lowest priority."""
SLOW_MLFLOW = """
import sqlite3
import time


class MlflowClient:
    def __init__(self, uri):
        connection = sqlite3.connect(uri.removeprefix("sqlite:///"))
        connection.execute("create table half (done integer)")
        time.sleep(60)
"""
"""Stands in for MLflow, which takes many seconds to come as far."""
STARTER = """
import sys
import time
from paceline.tracking.store import start_creating

start_creating(f"sqlite:///{sys.argv[1]}")
sys.stdin.readline()
sys.exit(2)
"""


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def creators(path: Path) -> list[int]:
    """The programs that are creating a database."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if str(path) in (process.info["cmdline"] or [])]


def half_made(folder: Path) -> list[Path]:
    return [file for file in folder.rglob(database.FRESH) if file.stat().st_size]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the database is to be."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def starter(tmp_path: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command that has started the creation, which has come half-way; a line on its stdin makes it fail."""
    (tmp_path / "mlflow.py").write_text(SLOW_MLFLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder / "mlflow.db")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: half_made(folder))
        yield process
    finally:
        process.kill()
        process.communicate()


def fail(starter: "subprocess.Popen[str]") -> None:
    starter.communicate("\n")


def press_ctrl_c(starter: "subprocess.Popen[str]") -> None:
    os.killpg(starter.pid, signal.SIGINT)


def kill(starter: "subprocess.Popen[str]") -> None:
    starter.kill()


@pytest.mark.parametrize(("ending", "code"), [(fail, 2), (press_ctrl_c, -signal.SIGINT), (kill, -signal.SIGKILL)])
def test_the_program_ends_with_the_command_that_started_it_and_leaves_nothing(
    folder: Path, starter: "subprocess.Popen[str]", ending: Callable[..., None], code: int
) -> None:
    assert len(creators(folder / "mlflow.db")) == 1 + 1  # the command has the path among its arguments too
    ending(starter)
    assert starter.wait(10) == code
    if ending is not kill:  # at once, but for a command that can do nothing about it
        assert creators(folder / "mlflow.db") == []
    wait_for(lambda: not creators(folder / "mlflow.db"), database.POLL_SECONDS + database.END_SECONDS)
    assert list(folder.iterdir()) == []


def test_ctrl_c_does_not_end_it_while_the_command_goes_on(folder: Path, starter: "subprocess.Popen[str]") -> None:
    (creator,) = (pid for pid in creators(folder / "mlflow.db") if pid != starter.pid)
    os.kill(creator, signal.SIGINT)
    time.sleep(0.5)
    assert creator in creators(folder / "mlflow.db")


def test_an_abandoned_recorder_ends_it(
    tmp_path: Path, folder: Path, record: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.import_mlflow()  # the recorder's thread would do so first
    (tmp_path / "mlflow.py").write_text(SLOW_MLFLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    recorder = Recorder(tmp_path / "run", record(f"sqlite:///{folder}/mlflow.db"))
    recorder.start_shipping()
    wait_for(lambda: half_made(folder))
    report = recorder.close("FAILED", "early", timeout_seconds=0.1)
    assert report.run_id is None
    wait_for(lambda: not creators(folder / "mlflow.db"))
    wait_for(lambda: not list(folder.iterdir()))


def test_one_that_was_killed_half_way_is_made_up_for_by_the_next(tmp_path: Path, odd_folder: Path) -> None:
    """With the real MLflow, and in a folder with an odd name."""
    folder = odd_folder
    path = folder / "mlflow.db"
    first = database.start_creating(path)
    assert first is not None
    wait_for(lambda: half_made(folder), CREATION_SECONDS)
    first.kill()
    first.communicate()
    assert [file.name for file in half_made(folder)] == [database.FRESH]
    assert not path.exists()

    second = database.start_creating(path)
    assert second is not None
    _, errors = second.communicate(timeout=CREATION_SECONDS)
    assert second.returncode == 0, errors.decode()
    assert list(folder.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == [folder]
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        assert connection.execute("select count(*) from experiments").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("name", ["a b", "50%41", "c#d", "q?x", "日本 ü", "p+l@u:s;t&k=v'\"[x]{y}\\z"])
def test_an_address_leads_to_its_file_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    from sqlalchemy.engine import make_url

    path = tmp_path / name / "mlflow.db"
    assert make_url(database.sqlite_uri(path)).database == str(path)
    assert sqlite_file(database.sqlite_uri(path)) == path
