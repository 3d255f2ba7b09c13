"""`paceline sweep` with its trials in an object store, whose driver may be killed."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.engine.manifest import MANIFEST
from paceline.storage.address import SWEEP_LOG
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_record import joined
from support.runs.command_process import CommandProcess
from support.storage.training import OWN_NET

NAME = "kept-sweep"
TRIALS = 4
STEPS = 8
"""Of each trial."""
CONFIG = """\
name: kept-sweep
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
optimizer: {name: sgd, momentum: 0.9}
trainer: {epochs: 2, log_every_n_steps: 1}
checkpoint: {every_n_steps: 4, keep: 2}
scaling: {num_workers: 1, cpus_per_worker: 0.5}
tracking: {system_metrics: false}
sweep: {space: {optimizer.lr: [0.01, 0.02, 0.04, 0.08]}, slots: 1}
"""


class Sweeping(CommandProcess):
    """A sweep that keeps its trials in `storage`, by default on a machine of its own."""

    def __init__(self, folder: Path, storage: str, variables: Mapping[str, str]) -> None:
        super().__init__(folder, variables, forks=False)
        self.storage = storage
        self.cache = folder / "cache"
        (folder / "sweep.yaml").write_text(CONFIG)
        (folder / "own_net.py").write_text(OWN_NET)

    def start(self, *arguments: str) -> None:
        """Start it, or resume it."""
        self.variables["PACELINE_CACHE"] = str(self.cache)
        self.give("sweep", "sweep.yaml", "--json", f"storage.path={self.storage}", *arguments)

    def run(self, *arguments: str) -> dict[str, Any]:
        """Start it, or resume it, and wait for its end; its result."""
        self.start(*arguments)
        return self.result()

    def start_and_wait_before(self, step: int, *arguments: str) -> None:
        """Start it, and let it stand still before a step, counted over all trials; that is reached."""
        (self.folder / f"wait-{step}").touch()
        self.start(*arguments)
        self.until((self.folder / "waits").exists)

    def go_on(self) -> None:
        """Stand still no longer."""
        for file in self.folder.glob("wait*"):
            file.unlink()

    def forget(self) -> None:
        """Go to another machine: there is no working copy."""
        shutil.rmtree(self.cache, ignore_errors=True)


def sweep_of(remote: RemoteFolder) -> RemoteFolder:
    """The place of the only sweep."""
    (sweep_id,) = (remote / NAME).folders()
    return remote / NAME / sweep_id


def whole_steps(remote: RemoteFolder, trial_id: str) -> list[int]:
    """The checkpoints of a trial that count."""
    files = (sweep_of(remote) / "trials" / trial_id / "checkpoints").files()
    return sorted(int(path.split("/")[0].removeprefix("step-")) for path in files if path.endswith(MANIFEST))


def log_in(remote: RemoteFolder) -> dict[str, dict[str, Any]]:
    """By id, how each trial stands by the store's log."""
    lines = map(json.loads, joined(sweep_of(remote) / SWEEP_LOG).splitlines())
    return {line["id"]: line for line in lines if line["kind"] == "trial"}


def steps_in(remote: RemoteFolder, trial_id: str) -> Counter[int]:
    """How often the store's journal of a trial has a training loss, by step."""
    data = (sweep_of(remote) / "trials" / trial_id / "tracking").read("journal.jsonl") or b""
    entries = map(json.loads, data.splitlines())
    return Counter(entry["step"] for entry in entries if entry["kind"] == "point" and entry["key"] == "train/loss")
