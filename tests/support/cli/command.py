"""The command line, as a process whose output goes to files, so that it can be read while it runs, or in this one."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.cli import run

INHERITED = ("MLFLOW_", "RAY_")
"""Prefixes of the variables that change what a command does."""
WAIT_SECONDS = 240.0


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON value on one line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """A running command."""

    count = 0

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        Command.count += 1
        self.files = [folder / f".{Command.count}.{stream}" for stream in ("out", "err")]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
        with self.files[0].open("w") as out, self.files[1].open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "paceline.cli", *arguments],
                cwd=folder,
                env={**clean, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait(self) -> Ended:
        """Wait for the end; one that does not come is an error, and leaves no process."""
        try:
            code = self.process.wait(WAIT_SECONDS)
        finally:
            self.stop()
        return Ended(code, self.files[0].read_text(), self.files[1].read_text())

    def stop(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def wait_for(self, text: str) -> None:
        """Wait until a text stands on stderr."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.files[1].read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"{text!r} did not come: {self.files[1].read_text()}")
            time.sleep(0.05)


def run_command(folder: Path, *arguments: str, **environment: str) -> Ended:
    """Run a command to its end."""
    return Command(folder, *arguments, **environment).wait()


@contextmanager
def working_folder(folder: Path, **environment: str) -> Iterator[None]:
    """Be in a folder as a new process would be: with its modules, and with nothing inherited."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in [key for key in os.environ if key.startswith(INHERITED)]:
            patch.delenv(variable)
        for variable, value in environment.items():
            patch.setenv(variable, value)
        patch.setattr(sys, "path", sys.path[:])
        patch.chdir(folder)
        before = set(sys.modules)
        yield
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def run_in_process(folder: Path, *arguments: str, **environment: str) -> Ended:
    """Run a command to its end in this process, which has imported torch and MLflow once for all."""
    out, err = io.StringIO(), io.StringIO()
    with working_folder(folder, **environment), redirect_stdout(out), redirect_stderr(err):
        try:
            code = run(arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())
