"""Several hosts on one machine: network namespaces, each with an address of its own, joined by a switch."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"
SWITCH_ADDRESS = f"{NETWORK}.254"


def missing() -> str:
    """Why there can be no hosts here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces are root's"
    tools = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if tools:
        return f"{' and '.join(tools)} are not installed"
    name = f"pl{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    run("ip", "netns", "del", name)
    return ""


def run(*command: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@dataclass(frozen=True)
class Host:
    """A network namespace; its one interface beside `lo` is called `eth0`."""

    name: str
    """Of the namespace."""
    address: str
    port: str
    """Name of the other end of its cable, at the switch."""
    switch: str
    """Namespace of the switch."""

    def command(self, *command: str | Path) -> list[str]:
        """The command, to be run on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def start(self, *command: str | Path, **given: Any) -> "subprocess.Popen[str]":
        """Start a program on this host, in a session of its own."""
        return subprocess.Popen(self.command(*command), text=True, start_new_session=True, **given)

    def run(self, *command: str | Path, **given: Any) -> "subprocess.CompletedProcess[str]":
        """Run a program on this host to its end."""
        return subprocess.run(self.command(*command), text=True, capture_output=True, **given)

    def processes(self) -> list[int]:
        """Ids of all that runs on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [int(line) for line in found.stdout.split()]

    def cut(self) -> None:
        """Pull the cable out."""
        run("ip", "-n", self.switch, "link", "set", self.port, "down")

    def join(self) -> None:
        """Put it in again."""
        run("ip", "-n", self.switch, "link", "set", self.port, "up")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, with addresses from 10.77.0.1 on; they go at the end, with their interfaces."""
    own = f"pl{os.getpid()}"
    switch = f"{own}s"
    names = [switch]
    try:
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "addr", "add", f"{SWITCH_ADDRESS}/24", "dev", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        made = []
        for number in range(1, count + 1):
            host = Host(f"{own}h{number}", f"{NETWORK}.{number}", f"port{number}", switch)
            names.append(host.name)
            _plug_in(host)
            made.append(host)
        yield made
    finally:
        for name in names:
            with suppress(AssertionError):
                run("ip", "netns", "del", name)


def _plug_in(host: Host) -> None:
    run("ip", "netns", "add", host.name)
    run("ip", "-n", host.name, "link", "set", "lo", "up")
    cable = ("type", "veth", "peer", "name", host.port, "netns", host.switch)
    run("ip", "-n", host.name, "link", "add", "eth0", *cable)
    run("ip", "-n", host.switch, "link", "set", host.port, "master", "bridge", "up")
    run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
    run("ip", "-n", host.name, "link", "set", "eth0", "up")
    run("ip", "-n", host.name, "route", "add", "default", "via", SWITCH_ADDRESS)  # by which Ray finds its address


def environment(home: Path, **more: str) -> Mapping[str, str]:
    """For programs on hosts: nothing of the user's own Ray and MLflow."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
    own = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_worker_niceness": "0"}  # or a busy machine leaves workers nothing
    return {**kept, "HOME": str(home), **own, **more}
