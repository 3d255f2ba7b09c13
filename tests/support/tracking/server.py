"""One real MLflow server for the whole session, shared by all test processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from paceline.tracking.mlflow_server import free_port, start_server, stop_server, wait_until_up
from support import leaks

POLL_SECONDS = 0.5
"""How soon the keeper notices that no test process uses the server any more."""


@dataclass(frozen=True)
class SharedServer:
    """A running server and the folder of its database, artifacts and log."""

    uri: str
    folder: Path


@pytest.fixture(scope="session")
def shared_server(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """Start the server in the first process that needs it; it ends after the last one has released it."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mlflow-server"
    me = shared / "users" / str(os.getpid())
    me.parent.mkdir(parents=True, exist_ok=True)
    address = shared / "address"
    with FileLock(shared / "lock"):
        me.touch()
        if not address.exists():
            _start_keeper(shared, prepared_database)
        uri = address.read_text()
    yield SharedServer(uri, shared / "store")
    me.unlink()


@pytest.fixture(scope="session")
def server_uri(shared_server: SharedServer) -> str:
    """Address of the shared MLflow server. Each test takes an experiment of its own there."""
    return shared_server.uri


def _start_keeper(shared: Path, database: Path) -> None:
    """Start the process that owns the server: no child of a test process, since it may outlive the one that began."""
    program = "import sys; from support.tracking.server import main; main(*sys.argv[1:])"
    variables = {key: value for key, value in os.environ.items() if key != leaks.MARK}
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (shared / "keeper.log").open("ab") as log:
        code = subprocess.call(
            [sys.executable, "-c", program, str(shared), str(database)],
            env={**variables, "PYTHONPATH": os.pathsep.join(places)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    assert code == 0, (shared / "keeper.log").read_text()


def main(shared_folder: str, database: str) -> None:
    """Start the server, leave a process behind that ends it, and return once it answers."""
    shared = Path(shared_folder)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os._exit(0 if os.read(reading, 1) == b"+" else 1)
    os.setsid()
    store = shared / "store"
    store.mkdir(exist_ok=True)
    shutil.copy(database, store / "mlflow.db")
    port = free_port(15_000 + os.getpid() % 10_000)  # apart from other sessions on this machine
    server = start_server(f"sqlite:///{store / 'mlflow.db'}", port, log=store / "server.log")
    try:
        uri = f"http://127.0.0.1:{port}"
        wait_until_up(server, uri)
        (shared / "address").write_text(uri)
        os.write(writing, b"+")
        os.close(writing)
        while _is_used(shared):
            time.sleep(POLL_SECONDS)
    finally:
        stop_server(server)


def _is_used(shared: Path) -> bool:
    """Whether a test process holds the server; those that died do not count. If not, the next one starts another."""
    with FileLock(shared / "lock"):
        is_used = any(psutil.pid_exists(int(pid)) for pid in os.listdir(shared / "users"))
        if not is_used:
            (shared / "address").unlink()
    return is_used
