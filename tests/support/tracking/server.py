"""One real MLflow server for the whole session, shared by all test processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from paceline.tracking.server import free_port, start_server, stop_server, wait_until_up
from support import leaks

STOP_SECONDS = 60.0
"""How long the last user waits for the server to end."""
POLL_SECONDS = 0.5
"""How soon the keeper notices that a test process has died without releasing the server."""


@dataclass(frozen=True)
class SharedServer:
    """A running server and the folder of its database, artifacts and log."""

    uri: str
    folder: Path


@pytest.fixture(scope="session")
def shared_server(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """Start the server in the first process that needs it; the last one that releases it ends it."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mlflow-server"
    me = shared / "users" / str(os.getpid())
    me.parent.mkdir(parents=True, exist_ok=True)
    address, keeper = shared / "address", shared / "keeper"
    with FileLock(shared / "lock"):
        me.touch()
        if not address.exists():
            _start_keeper(shared, prepared_database)
        uri = address.read_text()
    yield SharedServer(uri, shared / "store")
    with FileLock(shared / "lock"):
        me.unlink()
        if not _users(shared):
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int(keeper.read_text()), signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while keeper.exists():
                assert time.monotonic() < deadline, "the shared MLflow server does not end"
                time.sleep(0.05)


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


def _users(shared: Path) -> list[int]:
    """Test processes that hold the server; those that died do not count."""
    return [pid for pid in map(int, os.listdir(shared / "users")) if psutil.pid_exists(pid)]


def main(shared_folder: str, database: str) -> None:
    """Start the server, leave a process behind that ends it, and return once it answers."""
    shared = Path(shared_folder)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os._exit(0 if os.read(reading, 1) == b"+" else 1)
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    store = shared / "store"
    store.mkdir(exist_ok=True)
    shutil.copy(database, store / "mlflow.db")
    port = free_port(15_000 + os.getpid() % 10_000)  # apart from other sessions on this machine
    server = start_server(f"sqlite:///{store / 'mlflow.db'}", port, log=store / "server.log")
    try:
        uri = f"http://127.0.0.1:{port}"
        wait_until_up(server, uri)
        (shared / "keeper").write_text(str(os.getpid()))
        (shared / "address").write_text(uri)
        os.write(writing, b"+")
        os.close(writing)
        while _users(shared):
            time.sleep(POLL_SECONDS)
    finally:
        (shared / "address").unlink(missing_ok=True)
        stop_server(server)
        (shared / "keeper").unlink(missing_ok=True)  # last: the end of the server is waited for by it
