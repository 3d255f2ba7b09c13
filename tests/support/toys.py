"""Small data sets, models and configs whose every number can be followed."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.data._tensors import TensorData
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.rungs import Rungs
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

FEATURES, CLASSES = 6, 3


@cache
def _drawn(index: int) -> torch.Tensor:
    """The numbers of a sample before its class is added; to be left unchanged."""
    return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index + 1), dtype=torch.float64)


class Points(Dataset[Any]):
    """Samples `(features, target, id)`, computed from their id; with `noisy`, a random transform on top."""

    def __init__(self, samples: int, noisy: bool = False) -> None:
        self.samples = samples
        self.noisy = noisy

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        target = index % CLASSES
        features = _drawn(index) + target
        if self.noisy:
            import random

            import numpy as np

            features = features + torch.randn(FEATURES) * 0.1 + np.random.rand() + random.random()
        return features, target, index


def points(train: int = 96, validation: int = 30, noisy: bool = False) -> tuple[Points, Points]:
    """Training and validation set."""
    return Points(train, noisy), Points(validation)


def tensors(samples: int, *shape: int, classes: int = CLASSES) -> tuple[TensorData, TensorData]:
    """One set of random tensors and classes, for training and for validation; of `FEATURES` numbers by default."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, *(shape or (FEATURES,)), generator=generator)
    data = TensorData(inputs, torch.randint(0, classes, (samples,), generator=generator))
    return data, data


def net(width: int = 8) -> nn.Module:
    """Two layers, the first of them in a block."""
    return nn.Sequential(nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh()), nn.Linear(width, CLASSES))


def net_with_dropout_and_norm(width: int = 8) -> nn.Module:
    """One that draws random numbers, and has buffers."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, CLASSES))


class PointsTask(Task):
    """Classification that remembers which sample ids it was given in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: list[list[int]] = []

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        logits = self.model(features.to(next(self.model.parameters()).dtype))
        if self.training:
            self.seen.append(ids.tolist())
        correct = (logits.argmax(dim=1) == targets).sum()
        return TaskOutput(F.cross_entropy(logits, targets, reduction="sum"), len(targets), {"accuracy": correct})


def named(parameters: Iterable[nn.Parameter]) -> dict[str, nn.Parameter]:
    """Parameters by a name each, as optimizers are built from them."""
    return {f"parameter{index}": parameter for index, parameter in enumerate(parameters)}


def toy_config(**overrides: Any) -> ExperimentConfig:
    """Two epochs over 96 points in float64 in this process; keys with `__` for dots change it."""
    config = validate(
        {
            "name": "toy",
            "task": {"path": PointsTask},
            "model": {"path": net},
            "data": {"path": points, "global_batch_size": 16},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
            "trainer": {"epochs": 2, "precision": "64-true", "log_every_n_steps": 1},
            "scaling": {"num_workers": 0},
        }
    )
    return config.with_overrides({key.replace("__", "."): value for key, value in overrides.items()})


def built(
    config: ExperimentConfig,
    checkpoints: Any = None,
    reporter: MemoryReporter | None = None,
    rungs: Rungs | None = None,
) -> Any:
    """A trainer in this process."""
    return build_trainer(config, DistContext.current(), reporter or MemoryReporter(), checkpoints, rungs)


def fit(
    config: ExperimentConfig,
    ranks: DistContext | None = None,
    checkpoints: Any = None,
    reporter: MemoryReporter | None = None,
    rungs: Rungs | None = None,
) -> tuple[Any, Any, MemoryReporter]:
    """Train by the engine alone; returns the trainer, its outcome and what was reported."""
    reporter = reporter or MemoryReporter()
    trainer = build_trainer(config, ranks or DistContext.current(), reporter, checkpoints, rungs)
    return trainer, trainer.fit(), reporter


def fit_in_two(config: ExperimentConfig, checkpoints: Any, stop_at_step: int) -> tuple[Any, Any, MemoryReporter]:
    """Like `fit`, of a run that stops at a step and is resumed: what its second part gives."""
    fit(config, checkpoints=checkpoints, reporter=MemoryReporter(stop_at_step=stop_at_step))
    return fit(config, checkpoints=checkpoints)
