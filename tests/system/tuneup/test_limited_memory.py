"""A tune-up of a model whose trainer takes more than half of the memory that there is."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
name: large
task: {path: "support.tuneup.planted:DelayedTask", args: {seconds: 0.08}}
model: {path: "support.tuneup.planted:net", args: {width: 5600}}
data: {path: "support.tuneup.planted:clusters", args: {seconds: 0.0}, global_batch_size: 8}
optimizer: {name: sgd, lr: 0.01, momentum: 0.9}
trainer: {max_steps: 12, log_every_n_steps: 10}
scaling: {num_workers: 0}
tuneup:
  budget_seconds: 300
  seeds: 2
  margin: 1.0
  techniques:
    faster: {task.args: {seconds: 0.02}}
    slower: {model.args: {width: 5600, seconds: 0.06}}
    nothing: {model.args: {width: 5600, label: nothing}}
  only: [faster, slower, nothing]
"""
"""31 million weights: 378 MB for a trainer, with gradients and momentum."""
RIGHT = {"faster": "gain", "slower": "regression", "nothing": "no gain"}
DEVICE_GIB = 0.5
REST_BYTES = 750 * 2**20
"""Beside what a process of the tune-up has allocated before it builds anything: room for one trainer."""
IMPORTED = """
import torch, torch._dynamo
import paceline.tuneups.job_execution, paceline.tuneups.tuneup, paceline.engine.build, paceline.tuneups.display
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")][0])
"""


def tuned(home: Path, limit_bytes: int | None, *overrides: str) -> dict[str, dict[str, Any]]:
    """The techniques of a tune-up, by name.

    Args:
        limit_bytes: how much each of its processes may allocate.
    """

    def limited() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    home.mkdir()
    (home / "large.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "paceline", "tuneup", "large.yaml", "-v", "--json", *overrides]
    done = subprocess.run(command, cwd=home, env=environment(), preexec_fn=limited, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["techniques"] if each["name"] in RIGHT}


def environment() -> dict[str, str]:
    tests = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="what a process may allocate is limited by Linux alone")
def test_the_verdicts_are_those_of_a_tune_up_without_a_limit(tmp_path: Path) -> None:
    imported = subprocess.run([sys.executable, "-c", IMPORTED], env=environment(), capture_output=True, text=True)
    limit = 1024 * int(imported.stdout) + REST_BYTES
    device = f"tuneup.device_memory_gib={DEVICE_GIB}"
    large, small = tuned(tmp_path / "large", None), tuned(tmp_path / "small", limit, device)
    assert {name: each["verdict"] for name, each in large.items()} == RIGHT
    assert {name: each["verdict"] for name, each in small.items()} == RIGHT
    assert {each["in_turn"] for each in large.values()} == {False}
    assert {each["in_turn"] for each in small.values()} == {True}
    for name, each in small.items():
        assert each["speedup"] == pytest.approx(large[name]["speedup"], rel=0.1)
