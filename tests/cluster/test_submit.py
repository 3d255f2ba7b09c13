"""`ray job submit` to a cluster whose nodes do not have this package. Slow: run with `-m slow`."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

HIDE_PACKAGE = """
import sys
sys.path[:] = [entry for entry in sys.path if not entry.endswith("platform")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "").lower()]
"""
"""A node's Python has the dependencies, but not the editable install of this checkout."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A one-node cluster: its dashboard's address, and the environment for its clients."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE_PACKAGE)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "PYTHONPATH": str(tmp_path / "hide"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "HOME": str(tmp_path),
    }
    port, dashboard = free_port(), free_port()
    command = [BIN / "ray", "start", "--head", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
    command += ["--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", "--block"]
    with (tmp_path / "node.log").open("w") as log:
        node = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path)
    try:
        _wait_for(dashboard)
        yield f"http://127.0.0.1:{dashboard}", environment
    finally:
        os.killpg(node.pid, 15)
        node.wait(60)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError("the dashboard does not answer")


def submit(cluster: tuple[str, dict[str, str]], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Exactly what the README says, with the cluster's address."""
    address, environment = cluster
    command = ["ray", "job", "submit", "--address", address, "--runtime-env", "configs/runtime_env.yaml", "--"]
    command += ["python", "jobs/train.py", "configs/mnist_cnn.yaml", "trainer.epochs=2", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)


def test_a_job_trains_and_a_second_submission_starts_anew(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    places = (f"storage.path={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    done = submit(cluster, *places, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    result = json.loads(line)
    assert result["status"] == "finished"
    assert "starting the workers" in done.stdout + done.stderr
    assert Path(result["checkpoint"]).is_relative_to(tmp_path / "runs")


def test_a_job_without_places_that_last_is_refused(cluster: tuple[str, dict[str, str]]) -> None:
    done = submit(cluster)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "storage.path" in output
    assert "tracking.uri" in output
