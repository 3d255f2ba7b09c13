"""A Ray cluster of two hosts, which asks for a token."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.cluster.hosts import Host, environment, hosts
from support.cluster.job_cluster import HIDE_PACKAGE, wait_until
from support.storage.server import CREDENTIALS

BIN = Path(sys.executable).parent
PORT = 6379
SESSIONS = Path("/tmp/ray")
"""Where Ray keeps its sessions."""
CONFIG = """\
name: over-hosts
model: {name: mlp, in_features: 16, num_classes: 4, hidden: [32]}
data: {name: synthetic, shape: [16], num_classes: 4, num_samples: 256, global_batch_size: 32}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
trainer: {epochs: 2, log_every_n_steps: 1}
scaling: {num_workers: 2, use_gpu: false, cpus_per_worker: 1, placement: strict_spread}
"""


OWN_CODE = """
import time

from torch.nn import functional as F

from paceline import Task, TaskOutput


class SlowTask(Task):
    def __init__(self, model, pause=0.0):
        super().__init__(model)
        self.pause = pause

    def forward(self, batch):
        if self.training:
            time.sleep(self.pause)
        features, targets = batch
        return TaskOutput(F.cross_entropy(self.model(features), targets, reduction="sum"), len(targets))
"""


ON_ITS_NODE = """
import sys

import ray

init, address = ray.init, sys.argv.pop(1)
ray.init = lambda *given, **named: init(*given, **{**named, "_node_ip_address": address})
from paceline.cli import main

main(sys.argv[1:])
"""
"""Our command, connected to the node of an address: Ray looks for one among all processes, and prefers the head's."""


@dataclass
class Running:
    """A command of ours that is running."""

    process: "subprocess.Popen[str]"
    out: Path
    err: Path

    def ended(self, seconds: float = 300) -> "subprocess.CompletedProcess[str]":
        """Wait for its end."""
        try:
            code = self.process.wait(seconds)
        finally:
            self.process.kill()
        return subprocess.CompletedProcess([], code, self.out.read_text(), self.err.read_text())

    def until(self, condition: Callable[[], object], seconds: float = 180) -> None:
        """Wait for something that it does."""
        wait_until(lambda: condition() or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.ended().stderr


@dataclass
class TwoHosts:
    """Two hosts with a Ray node each."""

    hosts: list[Host]
    home: Path
    environment: Mapping[str, str]
    nodes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)
    started: int = 0
    """Commands so far."""

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
        isolated = [] if host is self.hosts[0] else self._with_own_sessions(host)
        command = [*isolated, BIN / "ray", "start"]
        with (self.home / f"{host.name}.log").open("a") as log:
            own_places = {"PYTHONPATH": str(self.home / "hide"), "PACELINE_CACHE": self.cache_of(host)}
            nodes = {**self.environment, **own_places, "PATH": f"{BIN}:{os.environ['PATH']}"}
            told = {"stdout": log, "stderr": log, "env": nodes, "cwd": self.home}
            self.nodes[host.name] = host.start(*command, *own, **told)
        _wait_for(host, self.hosts[0].address, PORT)

    def cache_of(self, host: Host) -> str:
        """Folder of a host's working copies of runs in an object store."""
        return str(self.home.with_name(f"{self.home.name}-cache-{host.name}"))

    def _with_own_sessions(self, host: Host) -> list[str | Path]:
        """What has a node keep its session in a folder of its own, as it would on another machine: what one of the
        nodes lets go of, such as a job's folder, is not to vanish from the other."""
        folder = self.home.with_name(f"{self.home.name}-{host.name}")  # not inside: Ray sends the home to the nodes
        folder.mkdir(exist_ok=True)
        SESSIONS.mkdir(exist_ok=True)
        return ["unshare", "--mount", "sh", "-c", f'mount --bind "$0" {SESSIONS} && exec "$@"', folder]

    def until_complete(self) -> None:
        """Wait until the cluster counts all hosts as alive."""
        wait_until(lambda: self.nodes_known() == len(self.hosts), 90)

    def announce_the_end_of(self, host: Host, seconds: int) -> None:
        """Tell Ray that a host's node is going to be taken away, as a cloud does of a spot instance."""
        command = ["drain-node", "--address", self.address, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--reason-message", "spot", "--deadline-remaining-seconds", str(seconds)]
        told = {"env": self.environment, "cwd": self.home, "timeout": 120}
        nodes = f"import ray; ray.init('{self.address}'); print([n['NodeID'] for n in ray.nodes() if n['Alive'] and "
        nodes += f"n['NodeManagerAddress'] == '{host.address}'][0])"
        node = self.hosts[0].run(sys.executable, "-c", nodes, **told).stdout.split()[-1]
        done = self.hosts[0].run(BIN / "ray", *command, "--node-id", node, **told)
        assert done.returncode == 0, done.stderr

    def kill_node(self, host: Host) -> None:
        """Kill all that runs on a host, at once."""
        for process in host.processes():
            os.kill(process, signal.SIGKILL)
        self.nodes.pop(host.name).wait(60)

    def paceline(self, *arguments: str, **given: Any) -> "subprocess.CompletedProcess[str]":
        """Run our command on the head."""
        command = [sys.executable, "-m", "paceline", *arguments]
        return self.hosts[0].run(*command, env=self.environment, cwd=self.home, timeout=300, **given)

    def start_paceline(self, *arguments: str, host: Host | None = None) -> "Running":
        """Start our command on a host, by default the head; it sees the sessions of that host's node."""
        host = host or self.hosts[0]
        self.started += 1
        out, err = (self.home / f"said-{self.started}.{kind}" for kind in ("out", "err"))
        command: list[str] = [sys.executable, "-m", "paceline", *arguments]
        if host is not self.hosts[0]:
            inside = ["nsenter", f"--target={self.nodes[host.name].pid}", "--mount", f"--wd={self.home}"]
            command = [*inside, sys.executable, "-c", ON_ITS_NODE, host.address, *arguments]
        environment = {**self.environment, "PACELINE_CACHE": self.cache_of(host)}
        with out.open("w") as stdout, err.open("w") as stderr:
            told = {"env": environment, "cwd": self.home, "stdout": stdout, "stderr": stderr}
            process = host.start(*command, **told)
        return Running(process, out, err)

    def nodes_known(self) -> int:
        """Nodes that the cluster counts as alive."""
        code = "import ray; ray.init('auto'); print(sum(node['Alive'] for node in ray.nodes()))"
        told = {"env": {**self.environment, "RAY_ADDRESS": self.address}, "cwd": self.home, "timeout": 120}
        done = self.hosts[0].run(sys.executable, "-c", code, **told)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])


@contextmanager
def ray_on_two_hosts(home: Path) -> Iterator[TwoHosts]:
    """Start a cluster that asks for a token.

    Args:
        home: the folder of its user.
    """
    (home / "over.yaml").write_text(CONFIG)
    (home / "slow_task.py").write_text(OWN_CODE)
    (home / "hide").mkdir()
    (home / "hide" / "sitecustomize.py").write_text(HIDE_PACKAGE)
    (home / ".ray").mkdir(mode=0o700)
    token = home / ".ray" / "auth_token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    with hosts(2) as made:
        keys = {key: value for key, value in CREDENTIALS.items() if key.startswith("AWS_")}
        cluster = TwoHosts(made, home, environment(home, RAY_AUTH_MODE="token", **keys))
        try:
            for host in made:
                cluster.start_node(host)
            cluster.until_complete()
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.terminate()
            for node in cluster.nodes.values():
                node.wait(60)


def _wait_for(host: Host, address: str, port: int) -> None:
    code = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
    wait_until(lambda: host.run(sys.executable, "-S", "-c", code).returncode == 0, 90)
