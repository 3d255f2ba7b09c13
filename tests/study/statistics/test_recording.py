"""The script that recorded the step times: what it writes, and that the neighbours it starts end with it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

SCRIPT = Path(__file__).resolve().parents[3] / "jobs" / "benchmarks" / "record_step_times.py"


def busy_children(process: int) -> set[psutil.Process]:
    """The neighbours that a process has started."""
    try:
        return {each for each in psutil.Process(process).children() if "expovariate" in " ".join(each.cmdline())}
    except psutil.Error:
        return set()


def test_it_adds_a_condition_to_what_is_there_and_leaves_nobody_running(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"quiet": "kept"}))
    options = ["--conditions", "one_neighbour", "--processes", "1", "--seconds", "0.1", "--steps", "10"]
    command = [sys.executable, str(SCRIPT), *options, "--json", str(file)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    seen: set[psutil.Process] = set()
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as script:
        while script.poll() is None:
            seen |= busy_children(script.pid)
            time.sleep(0.1)
    assert script.returncode == 0
    assert len(seen) == 1
    assert not any(each.is_running() for each in seen)
    recorded = json.loads(file.read_text())
    assert recorded["quiet"] == "kept"
    (process,) = recorded["one_neighbour"]["processes"]
    assert sorted(process["owners"][:2]) == [0, 1]
    assert [len(turn) for turn in process["milliseconds"]] == [10] * len(process["owners"])
    assert all(reading > 0 for turn in process["milliseconds"] for reading in turn)
