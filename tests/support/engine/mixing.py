"""Randomness outside of samples: a collator and a task that draw from all three global generators, as Mixup does."""

import random
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.toys import Points


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
