"""Parts of a batch and of a model's output, or an error that says what was there instead."""

from collections.abc import Mapping
from typing import Any

import torch

from paceline.errors import UnusableCode

_OWN_TASK = "a task of your own (task.path) can take anything else"
_MODEL_LOSS = (
    "for a model that takes the keys as arguments and returns its loss, as those of Hugging Face do, write "
    "task: {name: model_loss}"
)


def pair(batch: Any, needs: str) -> tuple[Any, Any]:
    """The two parts of a batch.

    Args:
        needs: the task and what it takes, such as `classification needs pairs (input, class)`.

    Raises:
        UnusableCode: it has not two parts.
    """
    if isinstance(batch, Mapping):
        raise UnusableCode(f"the data give {_a(batch)}; {needs}; {_MODEL_LOSS}; {_OWN_TASK}", "wrong-batch")
    if not isinstance(batch, (tuple, list)):
        raise UnusableCode(f"the data give {_a(batch)}; {needs}; {_OWN_TASK}", "wrong-batch")
    if len(batch) != 2:
        raise UnusableCode(f"the data give samples of {len(batch)} parts; {needs}; {_OWN_TASK}", "wrong-batch")
    return batch[0], batch[1]


def tensor(output: Any, needs: str) -> torch.Tensor:
    """A model's output.

    Raises:
        UnusableCode: it is not a tensor.
    """
    if not isinstance(output, torch.Tensor):
        raise UnusableCode(f"the model returned {_a(output)}; {needs}; {_OWN_TASK}", "wrong-output")
    return output


def same_shape(output: torch.Tensor, targets: torch.Tensor, needs: str) -> torch.Tensor:
    """A model's output in the shape of the targets: [batch, 1] and [batch] are the same.

    Raises:
        UnusableCode: their shapes differ otherwise, so that torch would compare each with each.
    """
    if output.shape not in (targets.shape, (*targets.shape, 1), targets.shape[:-1]) or (
        output.numel() != targets.numel()
    ):
        shapes = f"the model returned the shape {list(output.shape)} for targets of {list(targets.shape)}"
        raise UnusableCode(f"{shapes}; {needs}; {_OWN_TASK}", "wrong-shape")
    return output.reshape(targets.shape)


def full_precision(output: torch.Tensor) -> torch.Tensor:
    """A model's output in at least float32, in which losses are summed."""
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def _a(value: Any) -> str:
    return f"a {type(value).__name__}"
