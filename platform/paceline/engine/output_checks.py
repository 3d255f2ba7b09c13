"""Checks of a task's output: its type at each call."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
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
    if isinstance(weight, torch.Tensor):
        if weight.dim():
            output = replace(output, weight=_scalar("weight", weight))
    elif not isinstance(weight, int | float | Real):
        raise UnusableCode(
            f"TaskOutput.weight is a {type(weight).__name__}. Give a number, or a scalar tensor",
            "weight-not-a-number",
            returned=type(weight).__name__,
        )
    return output  # type: ignore[no-any-return]


def require_gradient(loss: torch.Tensor) -> None:
    """Check that a loss in training leads back to the parameters.

    Raises:
        UnusableCode: it does not.
    """
    if not loss.requires_grad:
        raise UnusableCode(
            "TaskOutput.loss_sum has no gradient: it does not depend on a trained parameter. Leave out .detach(), "
            "torch.no_grad() and conversions to whole numbers",
            "loss-without-gradient",
        )


def metric_mapping(returned: Any, maker: str) -> Mapping[Any, Any]:
    """Return what user code gave as its metrics.

    Args:
        maker: the function or the field, such as `training_metrics`.

    Raises:
        UnusableCode: it is not a mapping.
    """
    if isinstance(returned, Mapping):
        return returned
    raise UnusableCode(
        f"{maker} returned {type(returned).__name__}. Return a mapping of names and numbers",
        "metric-not-a-number",
        returned=type(returned).__name__,
    )


def metric_number(name: object, value: Any, maker: str) -> float:
    """Return a metric as a number.

    Raises:
        UnusableCode: it is none, nor a tensor with one element.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise UnusableCode(
            f"the metric {str(name)!r} of {maker} is a {type(value).__name__}{shape}. Give a number, or a tensor with "
            "one element",
            "metric-not-a-number",
            metric=str(name),
        ) from None


def _scalar(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() != 1:
        raise UnusableCode(
            f"TaskOutput.{name} has shape {list(tensor.shape)}, not []. Sum it over the micro batch",
            "output-not-scalar",
            field=name,
            shape=list(tensor.shape),
        )
    return tensor.reshape(())
