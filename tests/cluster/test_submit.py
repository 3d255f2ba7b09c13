"""`ray job submit` to a cluster whose nodes do not have this package. Slow: run with `-m slow`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.job_cluster import BIN, wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

OWN_NET = """
import os
import torch


def build():
    # imported from the folder that travelled, not from the one at home
    assert "/ray/" in os.path.abspath(__file__), __file__
    return torch.nn.Linear(8, 4)
"""


def submit(cluster: tuple[str, dict[str, str]], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Exactly what the README says, with the cluster's address."""
    return _start(cluster, *arguments).wait()


class _Submission:
    """A `ray job submit` that goes on while it is looked at."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait(self) -> subprocess.CompletedProcess[str]:
        try:
            output, _ = self.process.communicate(timeout=400)
        finally:
            self.process.kill()
        return subprocess.CompletedProcess([], self.process.returncode, output, "")


def _start(cluster: tuple[str, dict[str, str]], *arguments: str) -> _Submission:
    address, environment = cluster
    command = ["ray", "job", "submit", "--address", address, "--runtime-env", "configs/runtime_env.yaml", "--"]
    command += ["python", *(arguments if arguments[:1] == ("jobs/sweep.py",) else (*TRAIN, *arguments))]
    return _Submission(command, environment)


TRAIN = ("jobs/train.py", "configs/mnist_cnn.yaml")


def result_of(output: str) -> dict[str, Any]:
    """The JSON line among a job's logs."""
    return dict(json.loads(next(line for line in output.splitlines() if line.startswith("{"))))


def driver_of(storage: Path) -> psutil.Process:
    """The process of the submitted job's own script."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:2] == ["jobs/train.py"] and f"storage.path={storage}" in line:  # not the shell or client around it
            return process
    raise AssertionError("no driver is running")


def test_a_job_trains_on_nodes_without_the_package(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    places = (f"storage.path={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    done = submit(cluster, *places, "trainer.epochs=2", "--json")
    assert done.returncode == 0, done.stdout
    result = result_of(done.stdout)
    assert result["status"] == "finished"
    assert "starting the workers" in done.stdout
    assert Path(result["checkpoint"]).is_relative_to(tmp_path / "runs")


def test_a_job_whose_driver_dies_is_resumed_by_submitting_it_again(
    cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    places = (f"storage.path={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    length = "trainer.epochs=300"
    first = _start(cluster, *places, length, "--json")
    wait_until(lambda: any((tmp_path / "runs").glob("mnist-cnn/*/checkpoints/step-*")), 200)
    driver_of(tmp_path / "runs").kill()
    assert first.wait().returncode == 1
    again = submit(cluster, *places, length, "--json")
    assert again.returncode == 0, again.stdout
    assert "going on from step" in again.stdout
    result = result_of(again.stdout)
    (run,) = (tmp_path / "runs" / "mnist-cnn").glob("*/run.json")
    assert result["run_id"] == run.parent.name
    assert result["steps"] == 300 * 16


def test_a_job_sweeps_over_two_nodes(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """Each node has room for one of the two slots."""
    _, environment = cluster
    command = [BIN / "ray", "start", f"--address={environment['GCS']}", "--num-cpus=2", "--block"]
    with (tmp_path / "second.log").open("w") as log:
        second = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path
        )
    try:
        wait_until(lambda: "Ray runtime started" in (tmp_path / "second.log").read_text(), 90)
        places = (f"storage.path={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
        small = ("sweep.space={optimizer.lr: [0.01, 0.02, 0.04, 0.08]}", "sweep.seeds=1", "trainer.epochs=1")
        workers = ("scaling.num_workers=2", "sweep.slots=2")
        arguments = ("jobs/sweep.py", "configs/mnist_batch_lr.yaml", *places, *small, *workers, "--json")
        done = submit(cluster, *arguments)
        assert done.returncode == 0, done.stdout
        result = result_of(done.stdout)
        assert [trial["state"] for trial in result["trials"]] == ["finished"] * 4
        assert Path(result["best_config_path"]).is_relative_to(tmp_path / "runs")
    finally:
        os.killpg(second.pid, 15)
        second.wait(60)


def test_the_driver_may_stay_at_home(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """`--address`, with the user's own model: its code and this package travel to the node."""
    _, environment = cluster
    home = tmp_path / "home"
    home.mkdir()
    (home / "own_net.py").write_text(OWN_NET)
    config = {
        "name": "own",
        "model": {"path": "own_net:build"},
        "data": {"name": "synthetic", "shape": [8], "num_classes": 4, "num_samples": 64, "global_batch_size": 16},
        "scaling": {"num_workers": 1},
        "storage": {"path": str(tmp_path / "runs")},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    }
    (home / "own.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "paceline.cli", "train", "own.yaml", "--json", "--address", environment["GCS"]]
    at_home = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=home, env=at_home, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"


def test_a_job_without_places_that_last_is_refused(cluster: tuple[str, dict[str, str]]) -> None:
    done = submit(cluster)
    assert done.returncode == 1
    assert "storage.path" in done.stdout
    assert "tracking.uri" in done.stdout
