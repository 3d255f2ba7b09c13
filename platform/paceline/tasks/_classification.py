"""The module behind `classification`."""

import torch
from torch import nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._checked import pair, tensor
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class Classification(Task):
    """Cross-entropy over logits of shape [batch, classes] against class indices of shape [batch]."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> TaskOutput:
        """Sum of the losses; in evaluation also the number of right answers.

        Raises:
            UnusableCode: the batch, the model's output or the targets are nothing to classify.
        """
        inputs, targets = pair(batch, "classification needs pairs (input, class)")
        logits = tensor(self.model(inputs), "classification needs logits of shape [batch, classes]")
        try:
            loss_sum = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing, reduction="sum")
        except IndexError as error:  # on the CPU; a GPU's kernel only fails later, without an error to translate
            raise _out_of_range(logits, error) from error
        return TaskOutput(loss_sum, targets.shape[0], {} if self.training else {"accuracy": _correct(logits, targets)})


def _out_of_range(logits: torch.Tensor, error: IndexError) -> UnusableCode:
    classes = logits.shape[-1]
    return UnusableCode(
        f"the model has {classes} classes, so targets go from 0 to {classes - 1}: {str(error).rstrip('.')}",
        "target-out-of-range",
        classes=classes,
    )


def _correct(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.detach().argmax(dim=1) == targets).sum()
