"""Records, fresh databases, the shared MLflow server, and Python processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from support.tracking.fixtures import (
    _environment,
    _no_recorder_continues,
    odd_folder,
    proxy,
    record,
    sqlite_uri,
)
from support.tracking.server import server_uri, shared_server

__all__ = [
    "_environment",
    "_no_recorder_continues",
    "odd_folder",
    "proxy",
    "record",
    "server_uri",
    "shared_server",
    "sqlite_uri",
]


@pytest.fixture
def run_python() -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Start Python on a piece of code; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
