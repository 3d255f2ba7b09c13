"""A sweep over two hosts that share nothing but an object store: the driver is killed on one, and resumed on the other.

Slow: run with `-m slow`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.sweep_log import read_log
from support.cluster.two_hosts import TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

PORT = 9555
NAME = "stored"
SPACE = 'sweep={"space": {"optimizer.lr": [0.05, 0.1, 0.2, 0.4]}, "slots": 1}'
SLOW = ("task.path=slow_task:SlowTask", 'task.args={"pause": 0.15}', "checkpoint.every_n_steps=4")


def ask(cluster: TwoHosts, path: str, method: str = "GET") -> str | None:
    """Ask the store from the head; None while it does not answer."""
    request = f"urllib.request.Request('http://{cluster.hosts[0].address}:{PORT}/{path}', method='{method}')"
    code = f"import urllib.request; print(urllib.request.urlopen({request}, timeout=5).read().decode())"
    done = cluster.hosts[0].run(sys.executable, "-S", "-c", code)
    return done.stdout if done.returncode == 0 else None


@pytest.fixture
def storage(two_hosts: TwoHosts, tmp_path: Path) -> Iterator[str]:
    """Address of a place in a store on the head, which both hosts reach."""
    head = two_hosts.hosts[0]
    with (tmp_path / "moto").open("wb") as log:
        command = sys.executable, "-m", "moto.server", "-H", head.address, "-p", str(PORT)
        server = head.start(*command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while ask(two_hosts, "bucket", "PUT") is None:
            assert time.monotonic() < deadline, (tmp_path / "moto").read_text()
        yield f"s3://bucket/runs?endpoint_override={head.address}:{PORT}&scheme=http&region=us-east-1"
    finally:
        server.kill()
        server.wait()


def undisturbed(cluster: TwoHosts) -> dict[str, Any]:
    """The same sweep in a folder, on one machine without a cluster."""
    places = [f"storage.path={cluster.home}/alone", f"tracking.uri=sqlite:///{cluster.home}/alone.db"]
    arguments = [sys.executable, "-m", "paceline", "sweep", "over.yaml", "--json", *places, SPACE]
    told: Any = {"capture_output": True, "text": True, "timeout": 300, "cwd": cluster.home}
    told["env"] = {**cluster.environment, "RAY_AUTH_MODE": "disabled"}
    return result_of(subprocess.run([*arguments, f"name={NAME}", "scaling.placement=pack"], **told))


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_sweep_killed_on_one_host_is_resumed_on_the_other(two_hosts: TwoHosts, storage: str) -> None:
    expected = undisturbed(two_hosts)
    places = f"storage.path={storage}", f"tracking.uri=sqlite:///{two_hosts.home}/stored.db", f"name={NAME}"
    arguments = "sweep", "over.yaml", "--json", *places, *SLOW, SPACE, "--address", two_hosts.address
    first = two_hosts.start_paceline(*arguments)
    found = f"bucket?list-type=2&prefix=runs/{NAME}"
    first.until(lambda: "/trials/0001/checkpoints/step-4/MANIFEST.json" in (ask(two_hosts, found) or ""))
    first.process.kill()
    first.process.wait()
    second = two_hosts.start_paceline(*arguments, "--resume", "--wait-for-resources", "120", host=two_hosts.hosts[1])
    result = result_of(second.ended())
    assert [trial["state"] for trial in result["trials"]] == ["finished"] * 4
    weights = [{trial["id"]: trial["weights_sha256"] for trial in each["trials"]} for each in (result, expected)]
    assert weights[0] == weights[1]
    (folder,) = Path(two_hosts.cache_of(two_hosts.hosts[1])).glob(f"*/{NAME}/{result['sweep_id']}")
    attempts = {id: trial.attempts for id, trial in read_log(folder).trials.items()}
    assert attempts == {"0000": 1, "0001": 2, "0002": 1, "0003": 1}
