"""The command line, as a process of its own or in this one."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.cli import run
from paceline.tracking import uploader_process
from support.tracking import forked_uploader

INHERITED = ("MLFLOW_", "RAY_", "PACELINE_STORAGE", "PACELINE_ADDRESS")
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


def run_command(folder: Path, *arguments: str) -> Ended:
    """Run a command to its end as a process of its own. For one that is to be killed see `CommandProcess`."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
    command = [sys.executable, "-m", "paceline", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def working_folder(folder: Path, **environment: str) -> Iterator[None]:
    """Be in a folder as a new process would be: with its modules, and with nothing inherited."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in [key for key in os.environ if key.startswith(INHERITED)]:
            patch.delenv(variable)
        for variable, value in environment.items():
            patch.setenv(variable, value)
        patch.setattr(uploader_process, "_start", forked_uploader.start)
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
