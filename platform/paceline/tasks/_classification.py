"""The module behind `classification`."""

import torch
from torch import nn
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class Classification(Task):
    """Cross-entropy over logits of shape [batch, classes] against class indices of shape [batch]."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> TaskOutput:
        """Sum of the losses; in evaluation also the number of right answers."""
        inputs, targets = batch
        logits = self.model(inputs)
        loss_sum = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing, reduction="sum")
        return TaskOutput(loss_sum, len(targets), {} if self.training else {"accuracy": _correct(logits, targets)})


def _correct(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.detach().argmax(dim=1) == targets).sum()
