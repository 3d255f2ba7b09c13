"""Regression: squared, absolute or Huber loss."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class RegressionConfig(TaskConfig):
    """Batches are `(inputs, targets)`: what the model takes, and numbers of shape [batch] or [batch, outputs].

    The loss is the mean over samples and outputs, and so is `val/mae`, the absolute error. `val/r2` is the share of the
    targets' variance that is explained: the mean over the outputs of 1 - squared error / variance, and 0 for an output
    whose targets are all the same.
    """

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss", "mae", "r2")

    name: Literal["regression"]
    """Selects this task."""
    loss: Literal["mse", "mae", "huber"] = "mse"
    """The squared error, the absolute error, or half the squared error up to `huber_delta` and the absolute error
    beyond."""
    huber_delta: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Error at which `loss: huber` turns from squared to absolute, in the unit of the targets, in (0, 10^6]."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`, whose outputs have the shape of the targets."""
        from paceline.tasks._regression import Regression

        return Regression(model, self.loss, self.huber_delta)
