"""A task: model and loss together, so that the engine knows neither images nor text."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.config.base import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.tasks._task import Task as Task


@dataclass
class TaskOutput:
    """What one forward pass over a micro batch gives.

    The loss of an optimizer step is the sum of `loss_sum` over the sum of `weight` of the whole global batch.
    """

    loss_sum: "torch.Tensor"
    """Scalar: the sum, not the mean, of the micro batch's losses."""
    weight: "int | torch.Tensor"
    """What the sum is divided by: the number of samples, or the number of tokens that count (a scalar tensor)."""
    metrics: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """Scalars summed over the micro batch like `loss_sum`, such as the number of right answers for `accuracy`.
    Only read in evaluation."""


class TaskConfig(Component):
    """Builds a task around a model."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`."""
        raise NotImplementedError


def __getattr__(name: str) -> Any:
    # `Task` derives from torch's Module; configs are checked without torch, so it is imported when asked for.
    if name != "Task":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline.tasks._task import Task

    return Task
