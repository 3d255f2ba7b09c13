"""Checks of a task's output: its type at each call."""

from dataclasses import replace
from typing import Any

import torch

from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput


def checked_output(output: Any) -> TaskOutput:
    """Return what a task gave, with loss and weight as scalars.

    Raises:
        UnusableCode: it is not a `TaskOutput`, or its loss or weight is not a scalar.
    """
    if not isinstance(output, TaskOutput):
        raise UnusableCode(
            f"the task returned a {type(output).__name__}, not a TaskOutput. Return TaskOutput(loss_sum, weight), or "
            "TaskOutput.from_mean(loss, weight) for a mean",
            "not-a-task-output",
            returned=type(output).__name__,
        )
    loss, weight = output.loss_sum, output.weight
    if not isinstance(loss, torch.Tensor):
        raise UnusableCode(
            f"TaskOutput.loss_sum is a {type(loss).__name__}, not a tensor, so it has no gradient. Leave out .item() "
            "and float()",
            "loss-not-a-tensor",
            returned=type(loss).__name__,
        )
    if loss.dim():
        output = replace(output, loss_sum=_scalar("loss_sum", loss))
    if isinstance(weight, torch.Tensor) and weight.dim():
        output = replace(output, weight=_scalar("weight", weight))
    return output  # type: ignore[no-any-return]


def _scalar(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() != 1:
        raise UnusableCode(
            f"TaskOutput.{name} has shape {list(tensor.shape)}, not []. Sum it over the micro batch",
            "output-not-scalar",
            field=name,
            shape=list(tensor.shape),
        )
    return tensor.reshape(())
