"""`paceline train` with its runs in an object store, which may be killed, and resumed here or elsewhere."""

import importlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.runs.command_process import CommandProcess

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
HURRIED = {
    "paceline.storage.remote_folder.PATIENCE_SECONDS": 0.5,
    "paceline.storage.stored_checkpoints.FINAL_SECONDS": 2.0,
    "paceline.storage.run_keeper.END_SECONDS": 2.0,
    "paceline.storage.run_keeper.LEAVE_SECONDS": 0.5,
}
"""Constants of a command that waits for the store for moments only."""
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


class Training(CommandProcess):
    """A training that keeps its runs in `storage`, by default on a machine of its own."""

    def __init__(self, folder: Path, storage: str, variables: Mapping[str, str], forks: bool = True) -> None:
        super().__init__(folder, variables, forks)
        self.storage = storage
        self.cache = folder / "cache"
        self.settings: Mapping[str, float] = {}
        """Constants of later commands that differ."""
        (folder / "kept.yaml").write_text(CONFIG)
        (folder / "own_net.py").write_text(OWN_NET)

    def start(self, *overrides: str) -> None:
        """Start it, or resume it."""
        (self.folder / "waits").unlink(missing_ok=True)
        self.variables["PACELINE_CACHE"] = str(self.cache)
        prepare = partial(_prepare, self.settings, self.folder / EVENTS)
        self.give("train", "kept.yaml", "--json", f"storage.path={self.storage}", *overrides, prepare=prepare)

    def run(self, *overrides: str) -> dict[str, Any]:
        """Start it, or resume it, and wait for its end; its result."""
        self.start(*overrides)
        return self.result()

    def forget(self) -> None:
        """Go to another machine: there is no working copy."""
        shutil.rmtree(self.cache, ignore_errors=True)

    def start_and_wait_before(self, *steps: int, overrides: Sequence[str] = ()) -> None:
        """Start it, and let it stand still before these steps, one after the other; the first one is reached."""
        for step in steps:
            (self.folder / f"wait-{step}").touch()
        self.start(*overrides)
        self.until((self.folder / "waits").exists)

    def go_on(self, step: int | None = None) -> None:
        """Stand still no longer: before a step, or at all."""
        for file in self.folder.glob("wait*" if step is None else f"wait-{step}"):
            file.unlink()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Details of the events of a kind that the coordinators of all commands so far have noted."""
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


def _prepare(settings: Mapping[str, float], events: Path) -> None:
    """Set constants, and have events of coordinators written down, and the error that ends the command."""
    from paceline import cli
    from paceline.cluster.run_coordinator import RunCoordinator
    from paceline.errors import ConfigError

    for name, value in settings.items():
        module, _, constant = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), constant), float)
        setattr(sys.modules[module], constant, value)
    tell_coordinator, report = RunCoordinator.event, cli._report

    def note(kind: str, details: Mapping[str, Any]) -> None:
        with events.open("a") as lines:
            lines.write(json.dumps({kind: dict(details)}, default=str) + "\n")

    def event(coordinator: RunCoordinator, kind: str, details: dict[str, Any]) -> None:
        note(kind, details)
        tell_coordinator(coordinator, kind, details)

    def noting_report(error: Any, as_json: bool) -> int:
        keys = [problem.key for problem in error.problems] if isinstance(error, ConfigError) else []
        note("error", {"code": error.code, "keys": keys})
        return report(error, as_json)

    RunCoordinator.event = event  # type: ignore[method-assign, worker_spec]
    cli._report = noting_report
