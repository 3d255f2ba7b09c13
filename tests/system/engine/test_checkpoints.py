"""Checkpoints: whole or set aside, never a bit off, and no reason to end a run."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.build import build_trainer
from paceline.engine.checkpoint_files import read_checkpoint
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import describe
from paceline.engine.manifest import MANIFEST, verify
from paceline.engine.outcome import CheckpointLost
from paceline.engine.reporter import MemoryReporter
from support.refusals import refused
from support.toys import fit, toy_config

EVERY_4 = {"every_n_steps": 4, "keep": 3}


def steps_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


class Filling(MemoryReporter):
    """Fills the disk once a step has been reported and `step-4` is whole, and empties it when told of the trouble."""

    def __init__(self, disk: Path, fill_at: int, frees: bool) -> None:
        super().__init__()
        self.filler = disk / "filler"
        self.fill_at = fill_at
        self.frees = frees

    def metrics(self, step: int, values: Any) -> None:
        super().metrics(step, values)
        if step == self.fill_at:
            deadline = time.monotonic() + 60  # it is written beside the training
            while not (self.filler.parent / "checkpoints" / "step-4" / MANIFEST).exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with self.filler.open("wb", buffering=0) as file:
                try:
                    while file.write(os.urandom(4096)):
                        pass
                except OSError:
                    pass

    def event(self, kind: str, **details: Any) -> None:
        super().event(kind, **details)
        if kind == "warning" and self.frees:
            self.filler.unlink()


def test_a_full_disk_costs_a_checkpoint_but_not_the_run(small_disk: Path, golden: Any) -> None:
    _, whole, _ = fit(toy_config())
    reporter = Filling(small_disk, fill_at=5, frees=True)
    trainer = build_trainer(toy_config(checkpoint=EVERY_4), DistContext.current(), reporter, small_disk / "checkpoints")
    outcome = trainer.fit()
    assert outcome.weights_sha256 == whole.weights_sha256
    assert steps_in(small_disk / "checkpoints") == {"step-4", "step-12"}
    (warning,) = [details for kind, details in reporter.events if kind == "warning"]
    assert (warning["code"], warning["step"]) == ("checkpoint-not-written", 8)
    golden(warning["message"])


def test_a_disk_that_stays_full_loses_only_the_end(small_disk: Path, golden: Any) -> None:
    reporter = Filling(small_disk, fill_at=5, frees=False)
    folder = small_disk / "checkpoints"
    trainer = build_trainer(toy_config(checkpoint=EVERY_4), DistContext.current(), reporter, folder)
    refusal = refused(CheckpointLost, trainer.fit)
    assert (refusal.code, refusal.fields) == ("checkpoint-lost", {"step": 12, "newest": "step-4"})
    assert describe(refusal, 0).kind == "full_disk"  # a sweep leaves the trial for later
    golden(str(refusal))
    assert steps_in(folder) == {"step-4"}
    assert verify(folder / "step-4") == 4
    assert read_checkpoint(folder / "step-4").values["position"]["step"] == 4
