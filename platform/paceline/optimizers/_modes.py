"""Optimizers that keep other weights for evaluation than for training, as facebookresearch/schedule_free does.

Such an optimizer has two methods: `eval()` puts the weights for evaluation into the parameters, and `train()` puts
those of training back. The latter is also called before the first step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer


def has_modes(optimizer: Optimizer) -> bool:
    """True if an optimizer follows the convention."""
    return all(callable(getattr(optimizer, name, None)) for name in ("eval", "train"))


def begin_training(optimizer: Optimizer) -> None:
    """Switch a newly built optimizer to training, if it has modes."""
    modes: Any = optimizer
    if has_modes(optimizer):
        modes.train()


@contextmanager
def evaluation_weights(optimizer: Optimizer) -> Iterator[None]:
    """Weights for evaluation in the parameters; afterwards those of training, with the same bits.

    Holds a copy of the weights meanwhile, since `train()` computes them only up to rounding. Nothing happens where the
    optimizer has no modes.
    """
    if not has_modes(optimizer):
        yield
        return
    modes: Any = optimizer
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    copies = [parameter.detach().clone() for parameter in parameters]
    modes.eval()
    try:
        yield
    finally:
        modes.train()
        with torch.no_grad():
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)
