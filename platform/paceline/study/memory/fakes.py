"""Tensors without data: torch's own fake tensors, and what they cannot do yet."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def on_fakes() -> Iterator[FakeTensorMode]:
    """Let every tensor that the body makes have no data."""
    apply = nn.Module._apply
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            warnings.simplefilter("ignore")
            yield mode
    finally:
        nn.Module._apply = apply  # type: ignore[method-assign]


def without_data(module: nn.Module, mode: FakeTensorMode) -> None:
    """Take the data of a module's parameters and buffers away, in place; what is shared stays shared."""
    module._apply(mode.from_tensor)  # type: ignore[no-untyped-call]


def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """`nn.Module._apply`, which would swap each parameter's content: torch 2.15 refuses that with fake tensors."""
    applied: dict[int, Any] = {}
    for each in module.modules() if recurse else (module,):
        for name, parameter in each._parameters.items():
            if parameter is not None:
                each._parameters[name] = applied.setdefault(id(parameter), _converted(parameter, fn))
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = applied.setdefault(id(buffer), fn(buffer))
    return module


def _converted(parameter: nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
    with torch.no_grad():
        result = fn(parameter)
    return parameter if result is parameter else nn.Parameter(result, parameter.requires_grad)
