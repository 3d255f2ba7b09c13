"""Parts of a batch and of a model's output, or an error that says what was there instead."""

from typing import Any

import torch

from paceline.errors import UnusableCode

_OWN_TASK = "a task of your own (task.path) can take anything else"


def pair(batch: Any, needs: str) -> tuple[Any, Any]:
    """The two parts of a batch.

    Args:
        needs: the task and what it takes, such as `classification needs pairs (input, class)`.

    Raises:
        UnusableCode: it has not two parts.
    """
    if not isinstance(batch, (tuple, list)):
        raise UnusableCode(f"the data give {_a(batch)}; {needs}; {_OWN_TASK}", "wrong-batch")
    if len(batch) != 2:
        raise UnusableCode(f"the data give samples of {len(batch)} parts; {needs}; {_OWN_TASK}", "wrong-batch")
    return batch[0], batch[1]


def tensor(output: Any, needs: str) -> torch.Tensor:
    """A model's output.

    Raises:
        UnusableCode: it is no tensor.
    """
    if not isinstance(output, torch.Tensor):
        raise UnusableCode(f"the model returned {_a(output)}; {needs}; {_OWN_TASK}", "wrong-output")
    return output


def _a(value: Any) -> str:
    return f"a {type(value).__name__}"
