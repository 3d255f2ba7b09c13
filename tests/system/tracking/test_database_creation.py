"""The program that creates the embedded database: it ends with whoever started it, and leaves all or nothing."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from paceline.tracking import mlflow_connection, mlflow_database
from paceline.tracking.run_recorder import RunRecorder
from support.tracking.recording import MakeRecord, until

FAKE_MLFLOW = """
import sqlite3
import time


class MlflowClient:
    def __init__(self, uri):
        connection = sqlite3.connect(uri.removeprefix("sqlite:///"))
        connection.execute("create table half (done integer)")
        {then}

    def search_experiments(self, max_results):
        pass
"""
"""In place of MLflow, which takes many seconds to create a database."""
SLOW = FAKE_MLFLOW.format(then="time.sleep(60)")
STARTER = """
import sys
import time
from paceline.tracking.tracking_uri import start_creating

start_creating(f"sqlite:///{sys.argv[1]}")
sys.stdin.readline()
sys.exit(2)
"""


def creators(path: Path) -> list[int]:
    """The programs that are creating a database."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if str(path) in (process.info["cmdline"] or [])]


def half_made(folder: Path) -> list[Path]:
    return [file for file in folder.rglob(mlflow_database.FRESH) if file.stat().st_size]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the database is to be."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def starter(tmp_path: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command that has started the creation, which has come half-way; a line on its stdin makes it fail."""
    (tmp_path / "mlflow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder / "mlflow.db")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: half_made(folder))
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda starter: starter.communicate("\n"), 2),
        (lambda starter: os.killpg(starter.pid, signal.SIGINT), -signal.SIGINT),
        (lambda starter: starter.kill(), -signal.SIGKILL),
    ],
    ids=["it fails", "Ctrl-C", "it is killed"],
)
def test_the_program_ends_with_the_command_that_started_it_and_leaves_nothing(
    folder: Path, starter: "subprocess.Popen[str]", end: Callable[["subprocess.Popen[str]"], object], code: int
) -> None:
    (creator,) = (pid for pid in creators(folder / "mlflow.db") if pid != starter.pid)
    os.kill(creator, signal.SIGINT)  # a Ctrl-C alone does not end it
    end(starter)
    assert starter.wait(60) == code
    if code != -signal.SIGKILL:  # at once, but for a command that can do nothing about it
        assert creators(folder / "mlflow.db") == []
    until(lambda: not creators(folder / "mlflow.db"))
    assert list(folder.iterdir()) == []


def test_an_abandoned_recorder_ends_it(
    tmp_path: Path, folder: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_connection.import_mlflow()  # the recorder's thread would do so first
    (tmp_path / "mlflow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    recorder = RunRecorder(tmp_path / "run", record(f"sqlite:///{folder}/mlflow.db"))
    recorder.start_uploading()
    until(lambda: half_made(folder))
    report = recorder.close("FAILED", "early", timeout_seconds=0.1)
    assert report.run_id is None
    until(lambda: not creators(folder / "mlflow.db"))
    until(lambda: not list(folder.iterdir()))


def test_one_that_was_killed_half_way_is_made_up_for_by_the_next(
    tmp_path: Path, odd_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with an odd name."""
    path, modules = odd_folder / "mlflow.db", tmp_path_factory.mktemp("modules")
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
    (modules / "mlflow.py").write_text(SLOW)
    first = mlflow_database.start_creating(path)
    assert first is not None
    until(lambda: half_made(odd_folder))
    first.kill()
    first.communicate()
    assert [file.name for file in half_made(odd_folder)] == [mlflow_database.FRESH]
    assert not path.exists()

    (modules / "mlflow.py").write_text(FAKE_MLFLOW.format(then="connection.close()"))
    second = mlflow_database.start_creating(path)
    assert second is not None
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors.decode()
    assert list(odd_folder.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [odd_folder]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        assert connection.execute("select count(*) from half").fetchone() == (0,)
