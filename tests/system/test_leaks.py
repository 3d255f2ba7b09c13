"""The check that no test leaves a process behind sees what it should, and only that."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).resolve().parents[1]
SHORT_GRACE = "\nleaks.GRACE_SECONDS = 1.0\n"
LEAKING = """
import multiprocessing, subprocess, sys, time

SLEEP = "import time; time.sleep(300)  # planted as "

def test_leaves_a_child():
    subprocess.Popen([sys.executable, "-c", SLEEP + "child"])

def test_leaves_an_orphan():
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP + 'orphan'!r}])"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_leaves_a_fork():
    multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(300,), daemon=True).start()

def test_passes():
    pass
"""
LOADER = """
from torch.utils.data import DataLoader

HELD = []

def test_leaks():
    HELD.append(iter(DataLoader(range(100), num_workers=1)))
    next(HELD[0])
"""
TIDY = """
import multiprocessing, subprocess, sys, time
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]

@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen(SLEEP)
    yield
    process.kill()  # not waited for: it ends a moment later

def test_uses_a_server(server):
    pass

def test_forks_and_joins():
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()

def test_starts_what_ends_by_itself():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
"""


def pytest_on(folder: Path, code: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest on a test file, with the check from here."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text() + SHORT_GRACE)
    (folder / "test_planted.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def folder_of(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except psutil.Error:
        return None


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["alone", "xdist"])
def test_processes_left_behind_fail_the_run_and_are_named_and_ended(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = pytest_on(tmp_path, LEAKING, *options)
    assert ended.returncode == 1, ended.stdout
    assert "planted as child" in ended.stdout
    assert "planted as orphan" in ended.stdout
    assert "multiprocessing.forkserver" in ended.stdout
    # Python's own helpers end a moment after the process that used them
    _, alive = psutil.wait_procs([each for each in psutil.process_iter() if tmp_path == folder_of(each)], timeout=60)
    assert not alive


@pytest.mark.slow
def test_a_loader_process_is_found(tmp_path: Path) -> None:
    ended = pytest_on(tmp_path, LOADER)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "left processes behind" in ended.stdout


def test_helpers_and_what_ends_in_time_are_no_leak(tmp_path: Path) -> None:
    ended = pytest_on(tmp_path, TIDY)
    assert ended.returncode == 0, ended.stdout
