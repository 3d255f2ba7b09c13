"""A checkpoint that is evaluated again on several ranks gives the run's own metrics, and predictions in order."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from paceline.engine.dist_context import DistContext
from paceline.engine.evaluation import built_evaluation
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.toys import CLASSES, FEATURES, fit, points, toy_config

SAMPLES = 21
"""Uneven for two ranks, and for micro-batches of 4."""


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Predicting(Task):
    """Gives the sample's id as its target."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        logits = self.model(features)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return TaskOutput(loss, len(ids), predictions=logits.detach(), targets=ids)


def again(ranks: DistContext, folder: Path, strategy: str, callbacks: list[Any]) -> tuple[Any, Any, list[int], int]:
    """The metrics of a run's end, those of its checkpoint, the predicted ids of this rank, and how many there are."""
    config = toy_config(
        model__path=layers if strategy == "pipeline" else chain,
        task__path=Predicting,
        data__path=lambda: points(32, SAMPLES),
        data__global_batch_size=16,
        data__micro_batch_size=4,
        optimizer={"name": "schedule_free_adamw", "lr": 0.05},
        trainer__epochs=2,
        parallel__strategy=strategy,
        scaling__num_workers=ranks.world_size,
        callbacks=callbacks,
    )
    trained = fit(config, ranks, folder / "checkpoints")[1].metrics
    checkpoint = folder / "checkpoints" / "step-4"
    with built_evaluation(config, ranks, checkpoint, ["validation"]) as evaluation:
        metrics = evaluation.evaluate()
        own = folder / f"{ranks.rank}"
        own.mkdir()
        samples = evaluation.predict(own)
    ids = [index for part in sorted(own.iterdir()) for index in load_file(part)["targets"].tolist()]
    return {key: value for key, value in trained.items() if key.startswith("val/")}, metrics, ids, samples


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
@pytest.mark.parametrize("callbacks", [[], [{"name": "ema", "decay": 0.5}]], ids=["plain", "ema"])
def test_metrics_are_the_runs_own_and_each_sample_is_predicted_once(strategy: str, callbacks: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(again, 2, Path(folder), strategy, callbacks)
    for trained, evaluated, _, samples in found:
        assert trained
        assert evaluated == trained
        assert samples == SAMPLES
    assert [index for _, _, ids, _ in found for index in ids] == list(range(SAMPLES))
    assert torch.is_grad_enabled()
