"""Tests that run in their own process alone: no subprocess, no fork, no connection to a server, and so no Ray.

The conftest of a folder of such tests imports the fixture.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

FORBIDDEN = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.connect"}
"""Audit events of Python that only other system tests may raise."""

_is_running = False
_older_threads: set[int | None] = set()
"""Threads that an earlier test has left in this process: what they still do is not this test's."""


def _forbid(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_running or event not in FORBIDDEN:
        return
    if threading.get_ident() not in _older_threads and not _is_importing():
        raise RuntimeError(f"a test of this folder may not use {event}: move it to tests/system")


def _is_importing() -> bool:
    """Whether a module is being imported: torch and others ask the system about itself then."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
    return False


sys.addaudithook(_forbid)


@pytest.fixture(autouse=True)
def stay_in_this_process() -> Iterator[None]:
    """Fail a test that starts a process or connects to a server."""
    global _is_running
    _older_threads.update(each.ident for each in threading.enumerate() if each is not threading.current_thread())
    _is_running = True
    yield
    _is_running = False
    _older_threads.clear()
