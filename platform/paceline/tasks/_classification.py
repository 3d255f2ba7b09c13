"""The module behind `classification`."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._checked import pair, tensor
from paceline.tasks._mixing import mix
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

INDEX_TYPES = (torch.int64, torch.uint8)
"""Number formats of class indices that torch's cross-entropy accepts."""
_NEEDS = "classification needs logits of shape [batch, classes]"


class Classification(Task):
    """Cross-entropy over logits of shape [batch, classes] against class indices of shape [batch], or against class
    probabilities of shape [batch, classes]."""

    def __init__(
        self, model: nn.Module, label_smoothing: float = 0.0, mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0
    ) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing
        self.mixup_alpha = mixup_alpha
        self.cutmix_alpha = cutmix_alpha

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> TaskOutput:
        """Sum of the losses; in evaluation also the number of right answers, and predicted and true class indices:
        int64, [batch]. Of class probabilities the largest is the true class.

        Raises:
            UnusableCode: the batch, the model's output or the targets are nothing to classify.
        """
        inputs, targets = pair(batch, "classification needs pairs (input, class)")
        mixed = None
        if self.training and (self.mixup_alpha or self.cutmix_alpha):
            mixed = mix(inputs, self.mixup_alpha, self.cutmix_alpha)
            inputs = mixed.inputs
        logits = tensor(self.model(inputs), _NEEDS)
        is_soft = _is_soft(logits, targets)
        try:
            loss_sum = self._loss_sum(logits, targets)
            if mixed is not None:  # cross-entropy is linear in the targets
                other = self._loss_sum(logits, targets[mixed.partners])
                loss_sum = loss_sum * mixed.share + other * (1 - mixed.share)
        except IndexError as error:  # on the CPU; a GPU's kernel only fails later, without an error to translate
            raise _out_of_range(logits, error) from error
        if self.training:
            return TaskOutput(loss_sum, targets.shape[0])
        predictions = logits.detach().argmax(dim=1)
        classes = targets.argmax(dim=1) if is_soft else targets
        return TaskOutput(
            loss_sum, targets.shape[0], {"accuracy": (predictions == classes).sum()}, predictions, classes
        )

    def _loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing, reduction="sum")


def _out_of_range(logits: torch.Tensor, error: IndexError) -> UnusableCode:
    classes = logits.shape[-1]
    return UnusableCode(
        f"the model has {classes} classes, so targets go from 0 to {classes - 1}: {str(error).rstrip('.')}",
        "target-out-of-range",
        classes=classes,
    )


def _is_soft(logits: torch.Tensor, targets: Any) -> bool:
    """True for class probabilities, False for class indices.

    Raises:
        UnusableCode: the targets are neither, or the logits have another shape.
    """
    if logits.dim() != 2:
        raise UnusableCode(f"the model returned a tensor of shape {list(logits.shape)}. {_NEEDS}", "wrong-output")
    if isinstance(targets, torch.Tensor):
        if targets.dtype is torch.int64 and targets.dim() == 1 and targets.shape[0] == logits.shape[0]:
            return False  # the usual case, at each step
        if targets.is_floating_point() and targets.shape == logits.shape:
            return True
        if targets.dtype in INDEX_TYPES and targets.shape == logits.shape[:1]:
            return False
        given = f"{str(targets.dtype).removeprefix('torch.')} of shape {list(targets.shape)}"
    else:
        given = f"a {type(targets).__name__}"
    raise UnusableCode(
        f"the targets are {given}, for logits of shape {list(logits.shape)}. classification needs class indices "
        "(int64, [batch]) or class probabilities (float, [batch, classes])",
        "wrong-target",
        targets=given,
        logits=list(logits.shape),
    )
