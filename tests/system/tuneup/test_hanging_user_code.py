"""A model or data that hang while they are examined: every command gives up, and names the line where they hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from paceline import load_config
from paceline.tuneups.display import SilentWatcher
from paceline.tuneups.tuneup import _lint
from support.cli.command import run_in_process

CODE = """
import os
import re
import time
from torch import nn
from torch.utils.data import TensorDataset


def reached():
    open("reached", "w").write(str(os.getpid()))


def sleeping():
    reached()
    helper(3600)


def helper(seconds):
    time.sleep(seconds)


def holding():
    reached()
    return re.match("(a*)*b", "a" * 60)  # which lets no other thread of Python do anything


def build():
    return nn.Linear(4, 2)


def data():
    sleeping()
"""
CONFIG = """
name: own
model: {path: "hanging_own:build"}
data: {name: synthetic, shape: [4], num_classes: 2, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
scaling: {num_workers: 0}
"""
WAIT_SECONDS = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hanging_own.py").write_text(CODE)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a failing test would leave behind."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.communicate()


def begun(folder: Path, started: list[subprocess.Popen[str]], *arguments: str) -> subprocess.Popen[str]:
    line, pipe = [sys.executable, "-m", "paceline", *arguments], subprocess.PIPE
    started.append(subprocess.Popen(line, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
    return started[-1]


@pytest.mark.parametrize(
    ("command", "change", "place", "function"),
    [
        ("lint", "model.path=hanging_own:holding", "hanging_own.py:24", "holding"),
        pytest.param(
            "plan",
            "data={path: 'hanging_own:data', global_batch_size: 16}",
            "hanging_own.py:19",
            "helper",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_command_gives_up_and_names_the_line(
    folder: Path, started: list[subprocess.Popen[str]], command: str, change: str, place: str, function: str
) -> None:
    process = begun(folder, started, command, "own.yaml", "--json", "--timeout", "3", change)
    out, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 3, errors
    for text in (errors, json.loads(out)["error"]):
        assert place in text
        assert function in text
        assert "3 s" in text
    assert "Traceback" not in errors


@pytest.mark.usefixtures("separate_processes_are_forked")
def test_a_tune_up_lints_for_a_share_of_its_budget_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    config = load_config("own.yaml", {"model.path": "hanging_own:sleeping", "tuneup.budget_seconds": 20})
    (note,) = _lint(config, SilentWatcher())
    assert note.startswith("warning: hanging_own.py:19: ")
    assert "3 s" in note


# The command is ended


def hanging(folder: Path, started: list[subprocess.Popen[str]], how: str = "sleeping") -> int:
    """Start a command that hangs in user code; returns the id of the process that hangs for it."""
    process = begun(folder, started, "lint", "own.yaml", f"model.path=hanging_own:{how}")
    deadline = time.monotonic() + WAIT_SECONDS
    while not (reached := folder / "reached").exists() or not reached.read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(reached.read_text())


def starting(folder: Path, started: list[subprocess.Popen[str]]) -> int:
    """The same, but its process has just been started."""
    process = begun(folder, started, "lint", "own.yaml", "model.path=hanging_own:sleeping")
    while True:
        assert process.poll() is None
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "paceline.linting.apart" in child.cmdline():
                    return child.pid


def is_gone(process_id: int) -> bool:
    """Whether a process ends; given a moment."""
    try:
        psutil.Process(process_id).wait(60)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize("how", [pytest.param("sleeping", marks=pytest.mark.slow), "starting"])
def test_ctrl_c_ends_both_processes_without_a_traceback(
    folder: Path, started: list[subprocess.Popen[str]], how: str
) -> None:
    other = starting(folder, started) if how == "starting" else hanging(folder, started)
    os.killpg(started[0].pid, signal.SIGINT)
    _, errors = started[0].communicate(timeout=WAIT_SECONDS)
    assert started[0].returncode == 130
    assert len(errors.splitlines()) == 1
    assert is_gone(other)


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("starting", "sleeping")), "holding"]
)
def test_a_killed_command_takes_the_other_process_along(
    folder: Path, started: list[subprocess.Popen[str]], how: str
) -> None:
    """Also one that holds the interpreter, when the terminal is closed."""
    other = starting(folder, started) if how == "starting" else hanging(folder, started, how)
    if how == "holding":
        os.killpg(started[0].pid, signal.SIGHUP)
    else:
        started[0].kill()
    started[0].communicate(timeout=WAIT_SECONDS)
    assert is_gone(other)


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "much", "1e7"])
def test_a_timeout_that_makes_no_sense_is_refused(folder: Path, seconds: str) -> None:
    ended = run_in_process(folder, "lint", "own.yaml", "--timeout", seconds)
    assert ended.code == 2
    assert "--timeout" in ended.err
