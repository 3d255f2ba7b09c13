"""The module behind `regression`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.tasks._checked import full_precision, pair, same_shape, tensor
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

_NEEDS = "regression needs outputs and targets of the same shape, [batch] or [batch, outputs]"


class Regression(Task):
    """A loss over outputs of shape [batch] or [batch, outputs] against targets of the same shape."""

    def __init__(self, model: nn.Module, loss: str = "mse", huber_delta: float = 1.0) -> None:
        super().__init__(model)
        self.loss = loss
        self.huber_delta = huber_delta

    def forward(self, batch: tuple[Tensor, Tensor]) -> TaskOutput:
        """Sum over the samples of the mean loss of their outputs; in evaluation also the sums behind the metrics.

        Raises:
            UnusableCode: the batch or the model's output has another form.
        """
        inputs, targets = pair(batch, "regression needs pairs (input, numbers)")
        outputs = same_shape(full_precision(tensor(self.model(inputs), _NEEDS)), targets, _NEEDS)
        samples = targets.shape[0]
        loss = self._loss_sum(outputs, targets.to(outputs.dtype)) / (targets[0].numel() if samples else 1)
        if self.training:
            return TaskOutput(loss, samples)
        return TaskOutput(loss, samples, _sums(outputs.detach(), targets), outputs.detach(), targets)

    def compute(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Loss, mean absolute error and the coefficient of determination R^2."""
        weight = sums["weight"]
        total = sums["squared_target"] - sums["target"].square() / weight
        # without variance the difference of the two large numbers is rounding alone
        has_variance = total > 1e-12 * sums["squared_target"]
        r2 = torch.where(has_variance, 1 - sums["squared_error"] / total, 0.0)
        return {
            "loss": float(sums["loss"] / weight),
            "mae": float((sums["mae"] / weight).mean()),
            "r2": float(r2.mean()),
        }

    def _loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.loss == "mae":
            return F.l1_loss(outputs, targets, reduction="sum")
        if self.loss == "huber":
            return F.huber_loss(outputs, targets, reduction="sum", delta=self.huber_delta)
        return F.mse_loss(outputs, targets, reduction="sum")


def _sums(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """float64 sums over the samples, of each output: shape [outputs]."""
    y = targets.double().flatten(1) if targets.ndim > 1 else targets.double()[:, None]
    error = outputs.double().reshape(y.shape) - y
    return {
        "mae": error.abs().sum(0),
        "squared_error": error.square().sum(0),
        "target": y.sum(0),
        "squared_target": y.square().sum(0),
    }
