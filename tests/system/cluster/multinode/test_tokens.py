"""Who is let at a cluster with tokens, and what of it can be reached from elsewhere. Slow: run with `-m slow`."""

import sys
from pathlib import Path

import pytest

from support.cluster.two_hosts import PORT, TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

DASHBOARD = 8265
ASK = """
import sys, urllib.error, urllib.request
headers = {"Authorization": f"Bearer {sys.argv[1]}"} if sys.argv[1] else {}
try:
    print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8265/api/jobs/", headers=headers)).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
SCAN = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def is_open(port):
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((sys.argv[1], port)) == 0

with ThreadPoolExecutor(64) as pool:
    print(*[port for port, found in zip(range(1, 65536), pool.map(is_open, range(1, 65536))) if found])
"""
LISTENING = """
import psutil
for connection in psutil.net_connections("tcp"):
    if connection.status == "LISTEN" and not connection.laddr.ip.startswith("127."):
        print(connection.laddr.port, psutil.Process(connection.pid).name() if connection.pid else "?")
"""
RAYS_OWN = ("gcs_server", "raylet", "ray::", "python", "ray")
"""Programs of Ray's, which ask for the token; nothing else is to listen for other machines."""


@pytest.mark.parametrize(("token", "code"), [("", 401), ("0" * 64, 403), (None, 200)], ids=["none", "wrong", "right"])
def test_who_asks_needs_the_token(two_hosts: TwoHosts, token: str | None, code: int) -> None:
    right = (two_hosts.home / ".ray" / "auth_token").read_text()
    told = {"env": two_hosts.environment, "cwd": two_hosts.home, "timeout": 60}
    done = two_hosts.hosts[0].run(sys.executable, "-c", ASK, right if token is None else token, **told)
    assert done.stdout.split() == [str(code)], done.stderr


@pytest.mark.parametrize("token", ["", "0" * 64], ids=["none", "wrong"])
def test_a_run_without_the_token_is_refused(two_hosts: TwoHosts, tmp_path: Path, token: str) -> None:
    (tmp_path / ".ray").mkdir()
    file = tmp_path / ".ray" / "auth_token"
    if token:
        file.write_text(token)
        file.chmod(0o600)
    (tmp_path / "over.yaml").write_bytes((two_hosts.home / "over.yaml").read_bytes())
    environment = {**two_hosts.environment, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "paceline", "train", "over.yaml", "--address", two_hosts.address]
    command += [f"storage.path={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
    done = two_hosts.hosts[0].run(*command, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "token" in done.stderr.lower()


def test_only_rays_own_ports_can_be_reached_from_another_host(two_hosts: TwoHosts) -> None:
    head, other = two_hosts.hosts
    told = {"env": two_hosts.environment, "cwd": two_hosts.home, "timeout": 300}
    scanned = other.run(sys.executable, "-S", "-c", SCAN, head.address, **told)
    found = {int(port) for port in scanned.stdout.split()}
    assert PORT in found, scanned.stderr
    assert DASHBOARD not in found
    listening = head.run(sys.executable, "-c", LISTENING, **told).stdout.splitlines()
    programs = {int(line.split(maxsplit=1)[0]): line.split(maxsplit=1)[1] for line in listening}
    assert {port: programs.get(port, "?") for port in found if not programs.get(port, "?").startswith(RAYS_OWN)} == {}
