"""Training, sweeping and tuning over two hosts with addresses of their own. Slow: run with `-m slow`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cluster.two_hosts import BIN, CONFIG, TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[4]


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def given(cluster: TwoHosts, name: str, *more: str) -> list[str]:
    places = f"storage.path={cluster.home}/{name}", f"tracking.uri=sqlite:///{cluster.home}/{name}.db"
    return ["over.yaml", "--json", f"name={name}", *places, *more]


def alone(cluster: TwoHosts, command: str, name: str, *more: str) -> dict[str, Any]:
    """The same on one machine, without a cluster."""
    arguments = [sys.executable, "-m", "paceline", command, *given(cluster, name, "scaling.placement=pack", *more)]
    environment = {**cluster.environment, "RAY_AUTH_MODE": "disabled"}
    told: Any = {"capture_output": True, "text": True, "timeout": 300, "env": environment, "cwd": cluster.home}
    return result_of(subprocess.run(arguments, **told))


def test_two_hosts_train_as_one_does(two_hosts: TwoHosts) -> None:
    over = result_of(two_hosts.paceline("train", *given(two_hosts, "over"), "--address", two_hosts.address))
    one = alone(two_hosts, "train", "alone")
    assert over["metrics"]["val/loss"] == one["metrics"]["val/loss"]
    assert over["weights_sha256"] == one["weights_sha256"]


def test_a_sweep_goes_over_both_hosts(two_hosts: TwoHosts) -> None:
    sweep = 'sweep={"space": {"data.global_batch_size": [16, 32], "optimizer.lr_scaling": ["none", "linear"]}}'
    base = "optimizer.base_batch_size=16"
    address = "--address", two_hosts.address
    over = result_of(two_hosts.paceline("sweep", *given(two_hosts, "swept", sweep, base), *address))
    one = alone(two_hosts, "sweep", "swept-alone", sweep, base)
    assert {trial["state"] for trial in over["trials"]} == {"finished"}
    assert len({trial["weights_sha256"] for trial in over["trials"]}) == 3  # at the base batch both rules are one
    weights = [{trial["id"]: trial["weights_sha256"] for trial in each["trials"]} for each in (over, one)]
    assert weights[0] == weights[1]


def test_the_modules_of_every_value_of_an_axis_reach_both_hosts(two_hosts: TwoHosts) -> None:
    """One lies beside the config, in a folder from which the nodes import nothing."""
    net = "from torch import nn\n\n\ndef build():\n    "
    net += "return nn.Sequential(nn.Linear(16, {0}), nn.ReLU(), nn.Linear({0}, 4))\n"
    beside = two_hosts.home / "beside"
    beside.mkdir()
    (two_hosts.home / "near_net.py").write_text(net.format(8))
    (beside / "far_net.py").write_text(net.format(16))
    own = "{path: 'near_net:build'}"
    (beside / "far.yaml").write_text(CONFIG.replace(CONFIG.splitlines()[1], f"model: {own}"))
    _, *places = given(two_hosts, "far", "sweep={space: {model.path: ['near_net:build', 'far_net:build']}}")
    told = result_of(two_hosts.paceline("sweep", "beside/far.yaml", *places, "--address", two_hosts.address))
    assert [trial["state"] for trial in told["trials"]] == ["finished"] * 2
    assert len({trial["weights_sha256"] for trial in told["trials"]}) == 2


def submitted(cluster: TwoHosts, job: str, *arguments: str) -> dict[str, Any]:
    """The result of a job that is submitted from the clone as the README says."""
    config = (
        "configs/mnist_cnn.yaml",
        f"storage.path={cluster.home}/jobs",
        f"tracking.uri=sqlite:///{cluster.home}/jobs.db",
    )
    command = [BIN / "ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--runtime-env"]
    command += ["configs/deploy/runtime_env.yaml", "--", "python", f"jobs/{job}.py", *config, "--json", *arguments]
    done: subprocess.CompletedProcess[str] = cluster.hosts[0].run(
        *command, env=cluster.environment, cwd=ROOT, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return told


def test_a_tune_up_is_submitted_and_measures_over_both_hosts(two_hosts: TwoHosts) -> None:
    spread = "scaling.num_workers=2", "scaling.placement=strict_spread", "data.global_batch_size=64"
    brief = 'tuneup={"budget_seconds": 240, "seeds": 2, "skip": ["compile", "bf16", "exchange-bf16", "channels-last"]}'
    told = submitted(two_hosts, "tuneup", brief, "trainer.epochs=1", "name=tuned-by-job", *spread)
    techniques = {technique["name"]: technique for technique in told["techniques"]}
    assert techniques["static-graph"]["speedup"] > 0
    assert techniques["batch-x2"]["speedup"] > 1
    assert Path(told["recommended_path"]).read_text().startswith("#")
