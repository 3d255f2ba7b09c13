"""Training and sweeping over two hosts with addresses of their own. Slow: run with `-m slow`."""

import json
import subprocess
import sys
from typing import Any

import pytest

from cluster.multinode.conftest import TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def given(cluster: TwoHosts, name: str, *more: str) -> list[str]:
    places = f"storage.path={cluster.home}/{name}", f"tracking.uri=sqlite:///{cluster.home}/{name}.db"
    return ["over.yaml", "--json", f"name={name}", *places, *more]


def test_two_hosts_train_as_one_does(two_hosts: TwoHosts) -> None:
    over = result_of(two_hosts.paceline("train", *given(two_hosts, "over"), "--address", two_hosts.address))
    alone = [sys.executable, "-m", "paceline.cli", "train", *given(two_hosts, "alone", "scaling.placement=pack")]
    told = {"capture_output": True, "text": True, "timeout": 300}
    environment = {**two_hosts.environment, "RAY_AUTH_MODE": "disabled"}
    one = result_of(subprocess.run(alone, env=environment, cwd=two_hosts.home, **told))  # type: ignore[call-overload]
    assert over["metrics"]["val/loss"] == one["metrics"]["val/loss"]
    assert over["weights_sha256"] == one["weights_sha256"]
