"""Ctrl-C in a terminal, and its end, go to the command and to all processes of its Ray. Slow: run with `-m slow`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster.job_cluster import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

STEPS = 4800
CONFIG = """\
name: terminal
model: {name: mlp, in_features: 8, num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 6400, global_batch_size: 16}
trainer: {epochs: 12}
checkpoint: {every_n_steps: 50}
scaling: {num_workers: 2}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_terminal_s_signal_saves_and_the_same_command_resumes(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "terminal.yaml").write_text(CONFIG)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "RAY_"))}

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "paceline", "train", "terminal.yaml"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=tmp_path, env=clean, text=True, start_new_session=True, **streams)  # type: ignore[call-overload,no-any-return]

    def saved() -> list[int]:
        found = tmp_path.glob("runs/terminal/*/checkpoints/step-*/MANIFEST.json")
        return [int(path.parent.name.removeprefix("step-")) for path in found]

    first = start()
    try:
        wait_until(lambda: bool(saved()) or first.poll() is not None, 240)
        os.killpg(first.pid, number)  # as a terminal does, to the whole foreground group
        shown, _ = first.communicate(timeout=90)
    finally:
        first.kill()
    assert first.returncode == 130, shown
    assert "Traceback" not in shown
    (file,) = (tmp_path / "runs").glob("terminal/*/run.json")
    assert json.loads(file.read_text())["status"] == "interrupted"
    assert max(saved()) < STEPS
    second = start()
    try:
        shown, _ = second.communicate(timeout=300)
    finally:
        second.kill()
    assert second.returncode == 0, shown
    assert json.loads(file.read_text())["status"] == "finished"  # the same run
    assert max(saved()) == STEPS
