"""A model or data that hang while they are looked at: every command gives up, and says where they hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from paceline import load_config
from paceline.study.tuneup.tuneup import _lint

from .tuneup.played_bench import Recording

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hanging_own.py").write_text(CODE)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path


def begun(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "paceline.cli", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


CASES = [
    ("lint", "model.path=hanging_own:holding", "hanging_own.py:24, in holding"),
    ("plan", "data={path: 'hanging_own:data', global_batch_size: 16}", "hanging_own.py:19, in helper"),
]


def test_what_hangs_is_given_up_with_the_line_where_it_does(folder: Path) -> None:
    processes = [begun(folder, command, "own.yaml", "--json", "--timeout", "6", change) for command, change, _ in CASES]
    for process, (_, _, place) in zip(processes, CASES, strict=True):
        out, errors = process.communicate(timeout=100)
        assert process.returncode == 3, errors
        assert f"took more than 6 s, and was given up: it was at {place}" in errors
        assert place in json.loads(out)["error"]
        assert "Traceback" not in errors


def test_a_tune_up_looks_for_faults_with_a_share_of_its_budget_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    config = load_config("own.yaml", {"model.path": "hanging_own:sleeping", "tuneup.budget_seconds": 40})
    (note,) = _lint(config, Recording())
    assert note.startswith(
        "warning: hanging_own.py:19: building the model and the data, with some passes, took more than 6 s"
    )
    assert "--timeout" in note


def hanging(folder: Path, how: str = "sleeping") -> tuple[subprocess.Popen[str], int]:
    """A command that hangs in the user's code, and the process that hangs for it."""
    process = begun(folder, "lint", "own.yaml", f"model.path=hanging_own:{how}")
    deadline = time.monotonic() + 100
    while not (reached := folder / "reached").exists() or not reached.read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, int(reached.read_text())


def is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_ends_both_processes_without_a_traceback(folder: Path) -> None:
    process, errand = hanging(folder)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not is_there(errand)


@pytest.mark.parametrize("delay_seconds", [0.0, 0.1, 1.0])
def test_ctrl_c_while_the_other_process_starts_is_no_trouble(folder: Path, delay_seconds: float) -> None:
    process = begun(folder, "lint", "own.yaml", "model.path=hanging_own:sleeping")
    errand = started_by(process)
    time.sleep(delay_seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert is_gone(errand)


def started_by(command: subprocess.Popen[str]) -> int:
    """The process that looks at the model, as soon as there is one."""
    while True:
        assert command.poll() is None
        for child in psutil.Process(command.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "paceline.study.lint.apart" in child.cmdline():
                    return child.pid


def is_gone(process_id: int) -> bool:
    """Whether it ends; given a moment."""
    deadline = time.monotonic() + 60
    while is_there(process_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_there(process_id)


def test_when_the_command_is_killed_the_other_process_ends_as_well(folder: Path) -> None:
    process, errand = hanging(folder)
    process.kill()
    process.communicate(timeout=100)
    assert is_gone(errand)


def test_when_the_command_is_killed_at_once_the_other_process_ends_as_well(folder: Path) -> None:
    process = begun(folder, "lint", "own.yaml", "model.path=hanging_own:sleeping")
    errand = started_by(process)
    process.kill()
    process.communicate(timeout=100)
    assert is_gone(errand)


def test_when_the_terminal_is_closed_not_even_what_holds_the_interpreter_stays(folder: Path) -> None:
    process, errand = hanging(folder, "holding")
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=100)
    assert is_gone(errand)


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "much", "1e7"])
def test_a_timeout_that_is_none_is_refused(folder: Path, seconds: str) -> None:
    process = begun(folder, "lint", "own.yaml", "--timeout", seconds)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "--timeout" in errors
