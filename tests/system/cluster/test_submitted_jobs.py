"""`paceline submit` and `ray job submit` to a real cluster whose nodes do not have this package.

Slow: run with `-m slow`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from support.cluster.job_cluster import job_cluster, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
OWN_NET = """
import os
import time

import torch


class Net(torch.nn.Linear):
    def __init__(self, mistake, pause):
        # imported from the folder that travelled, not from the one at home
        assert "/ray/" in os.path.abspath(__file__), __file__
        super().__init__(8, 4)
        self.mistake, self.pause = mistake, pause

    def forward(self, batch):
        if self.mistake:
            raise ZeroDivisionError("the user's own mistake")
        time.sleep(self.pause)
        return super().forward(batch)


def build(mistake=False, pause=0.0):
    return Net(mistake, pause)
"""
STEPS_OF_EPOCH = 4
WAIT_SECONDS = 400


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Home:
    """A user's folder, from which jobs are submitted to a cluster."""

    def __init__(self, folder: Path, address: str, environment: dict[str, str]) -> None:
        self.folder, self.address = folder, address
        self.gcs = environment["GCS"]
        self.storage = folder.parent / "storage"
        self.places = (f"storage.path={self.storage}", f"tracking.uri=sqlite:///{folder.parent}/mlflow.db")
        self.nodes = environment
        """The environment of nodes, whose Python lacks the package."""
        self.environment = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
        (folder / "configs").mkdir(parents=True)
        (folder / "own_net.py").write_text(OWN_NET)

    def config(self, name: str, workers: int, **sections: Any) -> str:
        """The name of a new config file."""
        config = {
            "name": name,
            "model": {"path": "own_net:build"},
            "data": {"name": "synthetic", "shape": [8], "num_classes": 4, "num_samples": 64, "global_batch_size": 16},
            "scaling": {"num_workers": workers},
            "storage": {"path": str(self.storage)},
            "tracking": {"uri": f"sqlite:///{self.folder.parent}/mlflow.db"},
        }
        (self.folder / "configs" / f"{name}.yaml").write_text(json.dumps({**config, **sections}))
        return f"configs/{name}.yaml"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `paceline submit`."""
        command = [sys.executable, "-m", "paceline", "submit", "--address", self.address, *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **streams)  # type: ignore[call-overload,no-any-return]

    def submit(self, *arguments: str) -> Ended:
        return ended(self.start(*arguments))

    def ray_job(self, *arguments: str) -> Ended:
        """`ray job submit` from the clone, exactly as the README says."""
        environment = "configs/deploy/runtime_env.yaml"
        command = ["ray", "job", "submit", "--address", self.address, "--runtime-env", environment, "--"]
        command += ["python", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return ended(subprocess.Popen(command, cwd=ROOT, env=self.nodes, text=True, **streams))  # type: ignore[call-overload]

    def run(self, name: str) -> dict[str, Any]:
        """The file of the only run of a name, with its id."""
        (file,) = (self.storage / name).glob("*/run.json")
        return {"id": file.parent.name, **json.loads(file.read_text())}

    def saved_step(self, name: str) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        found = self.storage.glob(f"{name}/*/checkpoints/step-*/MANIFEST.json")
        return max((int(file.parent.name.removeprefix("step-")) for file in found), default=0)


def ended(command: "subprocess.Popen[str]") -> Ended:
    try:
        out, err = command.communicate(timeout=WAIT_SECONDS)
    finally:
        command.kill()
    return Ended(command.returncode, out, err)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    place = tmp_path_factory.mktemp("cluster")
    with job_cluster(place) as (address, environment):
        yield Home(place / "project", address, environment)


def test_a_job_trains_on_nodes_without_the_package(home: Home) -> None:
    done = home.submit(home.config("trained", 1), "trainer.epochs=2", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["status"], told["exit_code"]) == ("succeeded", 0)
    assert told["result"]["status"] == "finished"
    assert told["result"]["run_id"] == home.run("trained")["id"]
    again = home.submit("--follow", told["job_id"])
    assert again.code == 0, again.err
    assert again.out


@pytest.mark.parametrize(("override", "code"), [("model.args={mistake: true}", 1), ("scaling.num_workers=16", 3)])
def test_a_job_that_fails_has_the_code_of_its_driver(home: Home, override: str, code: int) -> None:
    done = home.submit(home.config(f"failed-{code}", 0), override)
    assert done.code == code, done.err + done.out
    assert ("sending" in done.err) is (code != 3)  # too few cores are found before


def test_a_job_sweeps_and_reports_failed_trials(home: Home) -> None:
    sweep = {"space": {"model.args.mistake": [False, True]}, "metric": "val/loss", "slots": 1}
    done = home.submit(home.config("swept", 1, sweep=sweep), "trainer.epochs=1", "--json")
    assert done.code == 4, done.err
    trials = json.loads(done.out)["result"]["trials"]
    assert [trial["state"] for trial in trials] == ["finished", "failed"]


def test_a_killed_or_stopped_job_is_resumed_when_it_is_submitted_again(home: Home) -> None:
    file, long = home.config("resumed", 1), ("model.args={pause: 0.05}", "trainer.epochs=100000")
    first = home.start(file, *long)
    wait_until(lambda: home.saved_step("resumed") > 0, WAIT_SECONDS)
    second = home.submit(file, *long)
    assert second.code == 3
    assert "paceline submit --follow resumed-" in second.err
    driver_of("configs/resumed.yaml").kill()
    killed = ended(first)
    assert killed.code == 137, killed.err

    saved = home.saved_step("resumed")
    third = home.start(file, *long)
    wait_until(lambda: home.saved_step("resumed") > saved, WAIT_SECONDS)
    found = re.search(r"--follow (resumed-\S+)", home.submit(file, *long).err)
    assert found
    follower = home.start("--follow", found[1])
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    assert ended(follower).code == 130
    assert driver_of("configs/resumed.yaml").is_running()
    third.send_signal(signal.SIGTERM)
    stopped = ended(third)
    assert stopped.code == 130, stopped.err
    assert home.run("resumed")["status"] == "interrupted"  # it had the time to save its state

    other = home.submit(file, "model.args={pause: 0.01}", long[1])
    assert other.code == 2, other.err + other.out  # the same run is found, and differs
    epochs = home.saved_step("resumed") // STEPS_OF_EPOCH + 2
    done = home.submit(file, long[0], f"trainer.epochs={epochs}", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)["result"]
    assert result["run_id"] == home.run("resumed")["id"]
    assert result["steps"] == epochs * STEPS_OF_EPOCH


def driver_of(config: str) -> psutil.Process:
    """The process of the command of a job."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:5] == ["-m", "paceline", "train", config] and os.path.basename(line[0]).startswith("python"):
            return process
    raise AssertionError("no driver is running")


# Without `paceline submit`


def result_of(done: Ended) -> dict[str, Any]:
    """The JSON line among the logs of a job."""
    assert done.code == 0, done.out + done.err
    return dict(json.loads(next(line for line in done.out.splitlines() if line.startswith("{"))))


def test_ray_job_submit_trains_and_refuses_places_that_do_not_last(home: Home) -> None:
    train = ("jobs/train.py", "configs/mnist_cnn.yaml")
    result = result_of(home.ray_job(*train, *home.places, "trainer.epochs=2", "--json"))
    assert result["status"] == "finished"
    assert Path(result["checkpoint"]).is_relative_to(home.storage)
    refused = home.ray_job(*train)
    assert refused.code == 1
    assert "storage.path" in refused.out + refused.err


def test_the_driver_may_stay_at_home(home: Home) -> None:
    """With `--address`, the user's code and this package travel to the node."""
    command = [sys.executable, "-m", "paceline", "train", home.config("at-home", 1), "--json"]
    command += ["--address", home.gcs]
    streams = {"capture_output": True, "text": True, "timeout": WAIT_SECONDS}
    done = subprocess.run(command, cwd=home.folder, env=home.environment, **streams)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
