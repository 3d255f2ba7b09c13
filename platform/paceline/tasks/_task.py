"""The base class of all tasks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput


class Task(nn.Module):
    """Model and loss as one module: `forward(batch) -> TaskOutput`.

    Write your own by deriving from it, and name it in the config: `task: {path: "my_pkg.tasks:MyTask"}`.
    """

    weight_is_samples = True
    """Whether `TaskOutput.weight` is the number of samples of the micro batch. Set it to False when it is anything
    else (tokens that count, importance weights): the engine then sums the weights over all ranks at each step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        """The network; its state dict is what `load_model` and `weights_sha256` are about."""

    def forward(self, batch: Any) -> TaskOutput:
        """Loss and, in evaluation mode, metrics of one micro batch as the data set's collation gives it.

        Before the first training step, the first micro batch and its halves are evaluated to check `loss_sum`.
        """
        raise NotImplementedError

    def compute(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the metrics of a validation set. Override it for those that are not plain means.

        By default each sum is divided by the weight. Every rank calls it with the same sums, after the last batch; a
        set without weight has no metrics.

        Args:
            sums: `loss`, `weight` and each of `TaskOutput.metrics`, by name, summed over the set and all ranks:
                float64, on the device, in the shape that the task gave.

        Raises:
            UnusableCode: a metric is not a scalar.
        """
        for name, each in sums.items():
            if each.numel() != 1:
                raise UnusableCode(
                    f"the metric {name!r} has shape {list(each.shape)}, so its mean is not a number. Override "
                    "Task.compute to make numbers of the sums, or give scalars",
                    "metric-not-scalar",
                    metric=name,
                    shape=list(each.shape),
                )
        return {name: (each / sums["weight"]).item() for name, each in sums.items() if name != "weight"}
