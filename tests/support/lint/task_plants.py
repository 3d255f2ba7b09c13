"""Small tasks and data sets with one fault each, and their repaired twins."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

from paceline import Task
from paceline.tasks.base import TaskOutput
from support.lint.plants import CHANNELS, CLASSES


class OwnTask(Task):
    """Classification as it should be, but for what `loss` does."""

    def forward(self, batch: Any) -> TaskOutput:
        images, targets = batch
        return TaskOutput(self.loss(self.model(images), targets), len(targets))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum")


class Measured(Task):
    """Classification with a metric of its own."""

    def forward(self, batch: Any) -> TaskOutput:
        images, targets = batch
        logits = self.model(images)
        correct = (logits.argmax(dim=1) == targets).sum()
        return TaskOutput(F.cross_entropy(logits, targets, reduction="sum"), len(targets), {"accuracy": correct})


def task_with(loss: Callable[[Any, Tensor, Tensor], Tensor], **parts: Callable[[], Any]) -> Callable[..., Task]:
    """A builder of such a task."""

    def build(model: nn.Module) -> Task:
        class Changed(OwnTask):
            def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
                return loss(self, logits, targets)

        task = Changed(model)
        for name, make in parts.items():
            setattr(task, name, make())
        return task

    return build


def summed(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="sum")


def averaged(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def kept(is_detached: bool) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def loss(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
        value = summed(task, logits, targets)
        task.losses.append(value.detach() if is_detached else value)
        return value

    return loss


def binary(squash: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def loss(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
        wanted = F.one_hot(targets, CLASSES).float()
        return F.binary_cross_entropy_with_logits(squash(logits), wanted, reduction="sum")

    return loss


def likelihood(squash: Callable[..., Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    return lambda task, logits, targets: F.nll_loss(squash(logits, dim=1), targets, reduction="sum")


def own_backward(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
    value = summed(task, logits, targets)
    if task.training:
        value.backward()
    return value


def queue() -> deque[Tensor]:
    return deque(maxlen=1000)


def rows(samples: int) -> Callable[[], Any]:
    def build() -> Any:
        dataset = TensorDataset(torch.randn(samples, CHANNELS, 8, 8), torch.arange(samples) % CLASSES)
        return Subset(dataset, range(samples)), Subset(dataset, range(8))

    return build


def labelled(first: int) -> Callable[[], Any]:
    """A builder of sets whose classes are numbered from `first`; only a whole micro-batch surely has the last one."""

    def build() -> Any:
        dataset = TensorDataset(torch.randn(64, CHANNELS, 8, 8), torch.arange(64) // (64 // CLASSES) + first)
        return dataset, Subset(dataset, range(8))

    return build


class Photographs(Dataset[tuple[Tensor, int]]):
    """Images of which the first ones are of equal size, and those behind them `growth` larger."""

    def __init__(self, growth: int) -> None:
        self.growth = growth

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        size = 8 + self.growth * (index >= len(self) // 2)
        return torch.randn(CHANNELS, size, size), index % CLASSES


def photographs(growth: int) -> Callable[[], Any]:
    def build() -> Any:
        return Photographs(growth), Photographs(0)

    return build


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", enabled=False)
