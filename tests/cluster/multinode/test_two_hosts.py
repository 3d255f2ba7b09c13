"""Training and sweeping over two hosts with addresses of their own. Slow: run with `-m slow`."""

import json
import subprocess
import sys
from typing import Any

import pytest

from cluster.multinode.conftest import TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

WIDE = "{name: mlp, in_features: 16, num_classes: 4, hidden: [512, 512, 512]}"
"""2.1 MB of gradients."""
RATE = "100mbit"


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def given(cluster: TwoHosts, name: str, *more: str) -> list[str]:
    places = f"storage.path={cluster.home}/{name}", f"tracking.uri=sqlite:///{cluster.home}/{name}.db"
    return ["over.yaml", "--json", f"name={name}", *places, *more]


def alone(cluster: TwoHosts, command: str, name: str, *more: str) -> dict[str, Any]:
    """The same on one machine, without a cluster."""
    arguments = [sys.executable, "-m", "paceline.cli", command, *given(cluster, name, "scaling.placement=pack", *more)]
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


def test_fewer_exchanges_pay_on_a_slow_link(two_hosts: TwoHosts) -> None:
    """Simulated: the link lets through what one between data centers might, and the model is small."""
    own = f"model={WIDE}", "data.num_samples=2048", "data.num_validation_samples=8", "trainer.epochs=1"
    # micro batches of 8 on each host: gradients are exchanged after each one, or after each eighth
    batches = {"each": "data.global_batch_size=16", "eighth": "data.global_batch_size=128"}
    seconds: dict[str, list[float]] = {arm: [] for arm in batches}
    for host in two_hosts.hosts:
        host.limit(RATE)
    try:
        for arm, batch in [*batches.items()] * 2:
            name = f"{arm}-{len(seconds[arm])}"
            arguments = given(two_hosts, name, *own, batch, "data.micro_batch_size=8", "trainer.log_every_n_steps=4")
            done = result_of(two_hosts.paceline("train", *arguments, "--address", two_hosts.address))
            seconds[arm].append(1 / done["samples_per_second"])
    finally:
        for host in two_hosts.hosts:
            host.unlimit()
    each, eighth = (min(of_arm) for of_arm in seconds.values())
    print(f"simulated link of {RATE}: {1e3 * each:.2f} and {1e3 * eighth:.2f} ms a sample, {each / eighth:.1f} times")
    assert each / eighth >= 1.5
