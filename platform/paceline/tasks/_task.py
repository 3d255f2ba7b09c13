"""The base class of all tasks."""

from typing import Any

from torch import nn

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
        """Loss and, in evaluation mode, metrics of one micro batch as the data set's collation gives it."""
        raise NotImplementedError
