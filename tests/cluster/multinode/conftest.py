"""A Ray cluster of two hosts, which asks for a token."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.multinode.hosts import Host, environment, hosts, missing

BIN = Path(sys.executable).parent
PORT = 6379
CONFIG = """\
name: over-hosts
model: {name: mlp, in_features: 16, num_classes: 4, hidden: [32]}
data: {name: synthetic, shape: [16], num_classes: 4, num_samples: 256, global_batch_size: 32}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
trainer: {epochs: 2, log_every_n_steps: 1}
scaling: {num_workers: 2, use_gpu: false, cpus_per_worker: 1, placement: strict_spread}
"""


@dataclass
class TwoHosts:
    """Two hosts with a Ray node each."""

    hosts: list[Host]
    home: Path
    environment: Mapping[str, str]
    nodes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{self.hosts[0].address}:{PORT}"

    def start_node(self, host: Host) -> None:
        """Start Ray on a host: the head on the first one."""
        own = ["--node-ip-address", host.address, "--num-cpus=2", "--block", "--disable-usage-stats"]
        if host is self.hosts[0]:
            own += ["--head", f"--port={PORT}", "--dashboard-host=127.0.0.1"]
        else:
            own += [f"--address={self.address}"]
        with (self.home / f"{host.name}.log").open("a") as log:
            told = {"stdout": log, "stderr": log, "env": self.environment, "cwd": self.home}
            self.nodes[host.name] = host.start(BIN / "ray", "start", *own, **told)
        _wait_for(host, self.hosts[0].address, PORT)

    def paceline(self, *arguments: str, **given: Any) -> "subprocess.CompletedProcess[str]":
        """Run our command on the head."""
        command = [sys.executable, "-m", "paceline.cli", *arguments]
        return self.hosts[0].run(*command, env=self.environment, cwd=self.home, timeout=300, **given)

    def nodes_known(self) -> int:
        """Nodes that the cluster counts as alive."""
        code = "import ray; ray.init('auto'); print(sum(node['Alive'] for node in ray.nodes()))"
        told = {"env": {**self.environment, "RAY_ADDRESS": self.address}, "cwd": self.home, "timeout": 120}
        done = self.hosts[0].run(sys.executable, "-c", code, **told)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    if reason := missing():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("hosts")
    (home / "over.yaml").write_text(CONFIG)
    (home / ".ray").mkdir(mode=0o700)
    token = home / ".ray" / "auth_token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    with hosts(2) as made:
        cluster = TwoHosts(made, home, environment(home, RAY_AUTH_MODE="token"))
        try:
            for host in made:
                cluster.start_node(host)
            deadline = time.monotonic() + 90
            while cluster.nodes_known() < len(made):
                assert time.monotonic() < deadline, "a node does not join"
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.terminate()
            for node in cluster.nodes.values():
                node.wait(60)


def _wait_for(host: Host, address: str, port: int) -> None:
    code = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
    deadline = time.monotonic() + 90
    while host.run(sys.executable, "-S", "-c", code).returncode:
        assert time.monotonic() < deadline, f"nothing answers at {address}:{port}"
        time.sleep(0.5)
