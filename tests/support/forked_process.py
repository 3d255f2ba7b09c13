"""Processes that Paceline starts as a new Python, forked from one that has imported what they need."""

import fcntl
import os
import runpy
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from multiprocessing.connection import Connection
from typing import IO, Any

from support.forkserver import CONTEXT, become_ordinary

Main = Callable[[], None]


class ForkedProcess:
    """What Paceline uses of a `Popen`. The process is no child of the one that starts it, but of their server."""

    def __init__(self, main: Main, environment: Mapping[str, str], passed: tuple[int, ...] = (), text: bool = False):
        """Start it, with pipes for its standard input and output.

        Args:
            passed: file descriptors that it has, too.
            text: whether its input is text.
        """
        with ExitStack() as stack:
            reading, stdin = map(stack.enter_context, CONTEXT.Pipe(duplex=False))
            stdout, writing = map(stack.enter_context, CONTEXT.Pipe(duplex=False))
            files = {0: reading, 1: writing}
            for number in (2, *passed):
                files[number] = stack.enter_context(Connection(os.dup(number), readable=False))
            given = main, files, os.getcwd(), dict(environment), signal.pthread_sigmask(signal.SIG_BLOCK, ())
            self._process = CONTEXT.Process(target=_run, args=given)
            self._process.start()
            self.stdin: IO[Any] | None = os.fdopen(os.dup(stdin.fileno()), "w" if text else "wb")
            self.stdout = os.fdopen(os.dup(stdout.fileno()), "rb")
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return code

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[bytes, None]:
        deadline, read = time.monotonic() + timeout, bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                if not (data := os.read(self.stdout.fileno(), 1 << 16)):
                    self.wait(max(0.0, deadline - time.monotonic()))
                    return bytes(read), None
                read += data
        raise subprocess.TimeoutExpired("a fork", timeout)


def run_module(module: str, descriptor: int, environment: Mapping[str, str]) -> ForkedProcess:
    """In place of `separate_process._popen`."""
    return ForkedProcess(_Module(module, descriptor, _path_of_python()), environment, (descriptor,))


def fork_separate_processes() -> None:
    """Have all separate processes of this process be forks: for a command that is a process of its own."""
    from paceline.cluster import separate_process

    separate_process._popen = run_module  # type: ignore[assignment]


class _Module:
    def __init__(self, name: str, descriptor: int, path: list[str]) -> None:
        self._name, self._descriptor, self._path = name, descriptor, path

    def __call__(self) -> None:
        sys.path[:] = self._path
        sys.argv = [self._name, str(self._descriptor), str(os.getppid())]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*found in sys.modules")  # by the server
            runpy.run_module(self._name, run_name="__main__", alter_sys=True)


@cache
def _path_of_python() -> list[str]:
    """Where a new Python looks for modules."""
    code = "import sys; print(*sys.path, sep=chr(0), end='')"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout.split("\0")


def _run(
    main: Main, files: Mapping[int, Connection], folder: str, environment: Mapping[str, str], blocked: set[int]
) -> None:
    become_ordinary()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    free = max(files) + 1  # above all places, and where nothing is: closing a file must not close another's copy
    copies = {number: fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, free) for number, file in files.items()}
    for file in files.values():
        file.close()
    for number, copy in copies.items():
        os.dup2(copy, number)
        os.close(copy)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    main()
