"""`paceline train` as a process that may be killed, forked from one that has imported torch already."""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support.storage.server import NOWHERE

PATIENCE_SECONDS = 120.0
NAME = "kept"
CONFIG = """\
name: kept
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
trainer: {epochs: 10, log_every_n_steps: 1, evaluate_every_n_epochs: 5}
checkpoint: {every_n_steps: 8, keep: 2}
scaling: {num_workers: 0}
tracking: {offline: allow, system_metrics: false}
"""
STEPS = 40
EVENTS = "events.jsonl"
PRELOADED = [
    *("torch", "torch._dynamo", "paceline.cli", "paceline.cluster.experiment", "paceline.cluster.in_process"),
    *("paceline.cluster.stored_runs", "paceline.cluster.worker", "paceline.engine.build", "paceline.tracking.apart"),
]
OWN_NET = """
import os
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent


class Net(torch.nn.Linear):
    \"\"\"Stands still before a step of this process, for as long as the file that names it is there.\"\"\"

    steps = 0

    def forward(self, batch):
        if self.training:
            Net.steps += 1
            while (HERE / f"wait-{Net.steps}").exists():
                (HERE / "waits").touch()
                time.sleep(0.05)
        return super().forward(batch)


def build():
    return Net(8, 4)
"""


def forking() -> Any:
    """A context whose processes are forked from one that has all the imports behind it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Training:
    """A user's folder, and the command that is given in it, by default on a machine of its own.

    Args:
        context: from `forking`.
        variables: of the environment, for the command.
    """

    def __init__(self, context: Any, folder: Path, storage: str, variables: Mapping[str, str]) -> None:
        self.folder, self.storage = folder, storage
        self._context = context
        self._variables = dict(variables)
        self._settings: dict[str, float] = {}
        self._process: BaseProcess | None = None
        self.cache = folder / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kept.yaml").write_text(CONFIG)
        (folder / "own_net.py").write_text(OWN_NET)

    def hurry(self) -> None:
        """Have later commands wait for the store for moments only."""
        self._settings = {
            "paceline.storage.remote.PATIENCE_SECONDS": 0.5,
            "paceline.storage.checkpoints.FINAL_SECONDS": 2.0,
            "paceline.storage.keeper.END_SECONDS": 2.0,
            "paceline.storage.keeper.LEAVE_SECONDS": 0.5,
        }

    def start(self, *overrides: str) -> None:
        """Give the command."""
        (self.folder / "waits").unlink(missing_ok=True)
        given = ["train", "kept.yaml", "--json", f"storage.path={self.storage}", *overrides]
        variables = {**self._variables, "PACELINE_CACHE": str(self.cache)}
        self._process = self._context.Process(target=_command, args=(self.folder, given, variables, self._settings))
        self._process.start()

    def kill(self) -> None:
        """SIGKILL for the process of the command."""
        assert self._process is not None
        self._process.kill()
        self._process.join()

    def interrupt(self) -> None:
        """Ctrl-C."""
        assert self._process is not None
        os.kill(int(self._process.pid or 0), signal.SIGINT)

    def forget(self) -> None:
        """Go to another machine: there is no working copy."""
        shutil.rmtree(self.cache, ignore_errors=True)

    def end(self) -> int:
        """Wait for the command to end; its exit code."""
        assert self._process is not None
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode is not None, self.told()
        return self._process.exitcode

    def result(self, *overrides: str) -> dict[str, Any]:
        """Give the command and let it come to its end."""
        self.start(*overrides)
        assert self.end() == 0, self.told()
        return self.printed()

    def printed(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "stdout").read_text()))

    def wait_before(self, step: int) -> None:
        """Stand still before a step that a process does."""
        (self.folder / f"wait-{step}").touch()

    def go_on(self) -> None:
        for file in self.folder.glob("wait*"):
            file.unlink()

    def stands(self) -> bool:
        return (self.folder / "waits").exists()

    def told(self) -> str:
        """What all commands so far have said."""
        file = self.folder / "stderr"
        return file.read_text() if file.exists() else ""

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Details of the events of a kind that the desks of all commands so far have noted."""
        file = self.folder / EVENTS
        lines = file.read_text().splitlines() if file.exists() else []
        return [event[kind] for event in map(json.loads, lines) if kind in event]

    @property
    def resumed(self) -> list[int]:
        """The steps that the commands so far have resumed from."""
        return [event["step"] for event in self.events("resumed")]

    @property
    def error(self) -> dict[str, Any]:
        """The code of the only error that a command has ended with, and the keys of its problems."""
        (error,) = self.events("error")
        return error

    def leave(self) -> None:
        """Leave no process."""
        if self._process is not None and self._process.exitcode is None:
            self.kill()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens while the command goes on."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._process is not None
            assert self._process.exitcode is None, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.02)


def _command(folder: Path, arguments: list[str], variables: Mapping[str, str], settings: Mapping[str, float]) -> None:
    for key in [key for key in os.environ if key.startswith(("AWS_", "MLFLOW_", "PACELINE_"))]:
        del os.environ[key]
    os.environ.update(variables)
    os.chdir(folder)
    for name, descriptor, mode in (("stdout", 1, "w"), ("stderr", 2, "a")):
        with (folder / name).open(mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["paceline", *arguments]
    for name, value in settings.items():
        module, _, constant = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), constant), float)
        setattr(sys.modules[module], constant, value)
    from paceline import cli
    from paceline.tracking.apart import ShipperApart

    _note_events(folder / EVENTS)
    if variables["MLFLOW_TRACKING_URI"] == NOWHERE:  # no process imports MLflow to find that out
        ShipperApart.start = lambda self: None  # type: ignore[method-assign]
    try:
        code = cli.main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _note_events(file: Path) -> None:
    """Write down what desks are told, and the error that ends the command."""
    from paceline import cli
    from paceline.cluster.desk import Desk
    from paceline.errors import ConfigError

    tell_desk, report = Desk.event, cli._report

    def note(kind: str, details: Mapping[str, Any]) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps({kind: dict(details)}, default=str) + "\n")

    def event(desk: Desk, kind: str, details: Mapping[str, Any]) -> None:
        note(kind, details)
        tell_desk(desk, kind, details)

    def noting_report(error: Any, as_json: bool) -> int:
        keys = [problem.key for problem in error.problems] if isinstance(error, ConfigError) else []
        note("error", {"code": error.code, "keys": keys})
        return report(error, as_json)

    Desk.event = event  # type: ignore[method-assign]
    cli._report = noting_report
