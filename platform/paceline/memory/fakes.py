"""Tensors without data: torch's own fake tensors, and what they cannot do yet."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline._compat.torch import (
    FakeTensorMode,
    apply_to_tensors,
    module_apply_replaced,
    own_buffers,
    own_parameters,
)


@contextmanager
def on_fakes() -> Iterator[FakeTensorMode]:
    """Let every tensor that the body makes have no data."""
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with module_apply_replaced(_apply), warnings.catch_warnings(), fakes as mode:
        warnings.simplefilter("ignore")
        yield mode


def without_data(module: nn.Module, mode: FakeTensorMode) -> None:
    """Take the data of a module's parameters and buffers away, in place; what is shared stays shared."""
    apply_to_tensors(module, mode.from_tensor)


def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """torch's own method of this name swap each parameter's content, which torch 2.15 refuses with fake tensors."""
    applied: dict[int, Any] = {}
    for each in module.modules() if recurse else (module,):
        parameters, buffers = own_parameters(each), own_buffers(each)
        for name, parameter in parameters.items():
            if parameter is not None:
                parameters[name] = applied.setdefault(id(parameter), _converted(parameter, fn))
        for name, buffer in buffers.items():
            if buffer is not None:
                buffers[name] = applied.setdefault(id(buffer), fn(buffer))
    return module


def _converted(parameter: nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
    with torch.no_grad():
        result = fn(parameter)
    return parameter if result is parameter else nn.Parameter(result, parameter.requires_grad)
