"""`paceline` as a process that may be killed, forked from one that has imported torch already."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support import forkserver, leaks
from support.forkserver import CONTEXT, become_ordinary
from support.tracking import forked_uploader
from support.tracking.recording import DEAD

PATIENCE_SECONDS = 240.0
FROM_OUTSIDE = ("AWS_", "MLFLOW_", "PACELINE_", "RAY_")
"""Variables of the environment that no command gets from the tests' own."""


class CommandProcess:
    """A user's folder, and commands that are given in it one after the other.

    Args:
        variables: of the environment, for the commands.
        forks: a command that starts Ray cannot be a fork: it is slower to start.
        forks_uploader: a command that is a fork has its upload process forked, too, which is then no child of its own.
    """

    def __init__(
        self, folder: Path, variables: Mapping[str, str], forks: bool = True, forks_uploader: bool = True
    ) -> None:
        self.folder = folder
        self.variables = dict(variables)
        self.forks_uploader = forks and forks_uploader
        self._context: Any = CONTEXT if forks else multiprocessing.get_context("spawn")
        self._process: BaseProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def give(self, *arguments: str, prepare: Callable[[], None] | None = None) -> None:
        """Give a command.

        Args:
            prepare: is called in its process first.
        """
        server = forkserver.address() if self.forks_uploader else None
        given = self.folder, arguments, {**leaks.marked(), **self.variables}, prepare, server
        self._process = self._context.Process(target=_command, args=given)
        self.process.start()

    @property
    def process(self) -> BaseProcess:
        """The process of the newest command."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """SIGKILL for the process of the command."""
        self.process.kill()
        self.process.join()

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(int(self.process.pid or 0), signal.SIGINT)

    def end(self) -> int:
        """Wait for the command to end; its exit code."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode is not None, self.told()
        return self.process.exitcode

    def result(self) -> dict[str, Any]:
        """Wait for the command to end well; the JSON that it has printed."""
        assert self.end() == 0, self.told()
        return dict(json.loads((self.folder / "stdout").read_text()))

    def told(self) -> str:
        """What all commands so far have said on stderr."""
        file = self.folder / "stderr"
        return file.read_text() if file.exists() else ""

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens while the command runs."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.exitcode is None, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.02)

    def leave(self) -> None:
        """Leave no process."""
        if self._process is not None and self._process.exitcode is None:
            self.kill()


def leave_no_reader() -> None:
    """Have nobody read this process's stdout, as after `| head -1` has read a line."""
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    os.close(reader)


def _command(
    folder: Path,
    arguments: tuple[str, ...],
    variables: Mapping[str, str],
    prepare: Callable[[], None] | None,
    server: str | None,
) -> None:
    become_ordinary()
    for key in [key for key in os.environ if key.startswith(FROM_OUTSIDE)]:
        del os.environ[key]
    os.environ.update(variables)
    os.chdir(folder)
    for name, descriptor, mode in (("stdout", 1, "w"), ("stderr", 2, "a")):
        with (folder / name).open(mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["paceline", *arguments]
    from paceline import cli
    from paceline.tracking import uploader_process, uploads

    if server is not None:
        forkserver.use(server)
        uploader_process._start = forked_uploader.start
    if prepare is not None:
        prepare()
    if variables.get("MLFLOW_TRACKING_URI") == DEAD:  # no process imports MLflow to find that out
        uploads.RecordUpload.start = lambda self: None  # type: ignore[method-assign]
    try:
        cli.main(list(arguments))
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error.code, int) else 1)
