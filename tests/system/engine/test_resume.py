"""Stopping and resuming, at the same world size and at others."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.toys import Points, PointsTask, points, toy_config

STEPS_PER_EPOCH = 7


def part(ranks: DistContext, folder: Path, stop_at: int | None, **overrides: Any) -> dict[str, Any]:
    """Train until asked to stop, or to the end."""
    config = toy_config(
        data__path=lambda: points(103, 31, noisy=True),
        scaling__num_workers=ranks.world_size,
        trainer__log_every_n_steps=4,
        **overrides,
    )
    reporter = MemoryReporter(stop_at_step=stop_at)
    trainer = build_trainer(config, ranks, reporter, folder)
    start = trainer.state.position.step
    outcome = trainer.fit()
    return {
        "from": start,
        "to": outcome.step,
        "stopped": outcome.stopped,
        "sha": outcome.weights_sha256,
        "seen": trainer.state.task.seen,
        "losses": {step: values["train/loss"] for step, values in reporter.points if "train/loss" in values},
        "metrics": outcome.metrics,
    }


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = part(DistContext.current(), tmp_path / "whole", None)
    first = part(DistContext.current(), tmp_path / "parts", 4, checkpoint={"every_n_steps": 3})
    second = part(DistContext.current(), tmp_path / "parts", None)
    assert first["stopped"]
    assert (first["to"], second["from"]) == (4, 4)
    assert second["sha"] == whole["sha"]
    assert first["seen"] + second["seen"] == whole["seen"]
    assert {**first["losses"], **second["losses"]} == whole["losses"]
    longer = part(DistContext.current(), tmp_path / "parts", None, trainer__epochs=3)
    assert (longer["from"], longer["to"]) == (2 * STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH)


def draw() -> list[float]:
    """One number from each generator."""
    return [torch.rand(()).item(), np.random.rand(), random.random()]


class KeptPoints(Points):
    """Draws for a sample only when it is loaded for the first time in a process; its collator scales each batch."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            draw()
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]

    def collate_fn(self, samples: list[Any]) -> Any:
        features, targets, ids = torch.utils.data.default_collate(samples)
        return features * (1 + sum(draw())), targets, ids


class ScalingTask(Task):
    """Scales the inputs of each micro-batch at random in training."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, _ = batch
        factor = 1 + sum(draw()) if self.training else 1.0
        losses = F.cross_entropy(self.model(features * factor), targets, reduction="sum")
        return TaskOutput(losses, len(targets))


def mixed(folder: Path, stop_at: int | None = None, num_workers: int = 0) -> str:
    """The weights of a run whose collator and task draw random numbers."""
    config = toy_config(
        data__path=lambda: (KeptPoints(96), KeptPoints(8)),
        data__num_workers=num_workers,
        task__path=ScalingTask,
        trainer__gradient_accumulation_steps=2,
    )
    trainer = build_trainer(config, DistContext.current(), MemoryReporter(stop_at_step=stop_at), folder)
    return trainer.fit().weights_sha256


def test_collators_and_tasks_draw_the_same_with_loader_processes_and_when_resumed(tmp_path: Path) -> None:
    whole = mixed(tmp_path / "whole")
    assert mixed(tmp_path / "processes", num_workers=2) == whole
    assert mixed(tmp_path / "parts", stop_at=4) != whole
    assert mixed(tmp_path / "parts") == whole


def test_two_ranks_stop_together_and_end_with_the_same_bits(tmp_path: Path) -> None:
    whole = run_ranks(part, 2, tmp_path / "whole", None)
    first = run_ranks(part, 2, tmp_path / "parts", 3)
    assert first[0]["stopped"]
    assert first[0]["to"] == first[1]["to"] < whole[0]["to"]
    second = run_ranks(part, 2, tmp_path / "parts", None)
    assert {result["sha"] for result in second} == {whole[0]["sha"]}


class SlowTask(PointsTask):
    """Takes its time, so that ranks agree every few steps."""

    def forward(self, batch: Any) -> TaskOutput:
        time.sleep(0.05)
        return super().forward(batch)


def leaving(ranks: DistContext, folder: Path, leave_at: int | None) -> tuple[list[int], str]:
    """The steps that were saved by a run of 21 steps, whose own checkpoints are far apart, and its last weights."""
    config = toy_config(
        data__path=lambda: points(103, 31),
        scaling__num_workers=ranks.world_size,
        trainer__log_every_n_steps=1,
        checkpoint={"every_n_steps": 1000},
        task__path=PointsTask if leave_at is None else SlowTask,
        trainer__epochs=3,
    )
    reporter = MemoryReporter(leave_at_step=leave_at)
    outcome = build_trainer(config, ranks, reporter, folder).fit()
    saved = [details["step"] for kind, details in reporter.events if kind == "checkpoint"]
    return saved, outcome.weights_sha256


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_machine_that_leaves_saves_as_often_as_it_can(tmp_path: Path, world_size: int) -> None:
    (before, sha), *_ = run_ranks(leaving, world_size, tmp_path / "stays", None)
    assert before == [21]
    (saved, same), *_ = run_ranks(leaving, world_size, tmp_path / "leaves", 6)
    assert same == sha
    assert min(saved) >= 6
    assert len(saved) > 2  # not only once: it would lose the steps after that


def test_another_world_size_sees_the_same_samples_a_step(tmp_path: Path) -> None:
    whole = part(DistContext.current(), tmp_path / "whole", None)
    stops = [2, 6, None]
    seen: list[set[int]] = []
    for world_size, stop in zip((2, 1, 2), stops, strict=True):
        results = run_ranks(part, world_size, tmp_path / "parts", stop)
        assert results[0]["from"] == len(seen)
        steps = zip(*(result["seen"] for result in results), strict=True)
        seen += [set(sum(step, [])) for step in steps]
    assert seen == [set(ids) for ids in whole["seen"]]
    assert results[0]["metrics"]["val/loss"] == pytest.approx(whole["metrics"]["val/loss"], abs=1e-9)
