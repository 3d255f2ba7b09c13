"""Fake tensors, which have shapes, types and graphs, but neither memory nor values."""

import copy
import functools
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline._compat.torch import FakeTensor, FakeTensorMode, own_buffers, own_parameters
from paceline.linting.own_code import is_own
from paceline.linting.replaced import replaced
from paceline.tasks._task import Task


def with_fake_tensors(task: Task, mode: FakeTensorMode) -> Task:
    """The task with a fake tensor for each parameter and buffer; a copy, if it has none yet."""
    held = [*task.parameters(), *task.buffers()]
    if not any(isinstance(tensor, FakeTensor) for tensor in held):
        task = copy.deepcopy(task)  # the user's code may hold on to it
    made: dict[int, Any] = {}

    def faked(tensor: Any) -> Any:
        if tensor is None or isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in made:
            fake = mode.from_tensor(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if is_parameter else fake
        return made[id(tensor)]

    for module in task.modules():
        for group in (own_parameters(module), own_buffers(module)):
            for name, tensor in group.items():
                group[name] = faked(tensor)
    return task


@contextmanager
def copyable_fake_tensors() -> Iterator[None]:
    """Let `copy.deepcopy` take fake tensors in the body; it would copy memory that they do not have, and crash."""

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                new = self.clone().requires_grad_(self.requires_grad)
            is_parameter = isinstance(self, nn.Parameter)
            memo[id(self)] = nn.Parameter(new, self.requires_grad) if is_parameter else new
        return memo[id(self)]

    with replaced(FakeTensor, "__deepcopy__", copied):
        yield


@contextmanager
def untold_failures() -> Iterator[None]:
    """Keep torch from logging a traceback for each operation that fails on fake tensors: a finding says what failed."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    with replaced(logger, "disabled", True):
        yield


@contextmanager
def caches_emptied() -> Iterator[None]:
    """Empty the caches of user functions afterwards: a fake tensor in one would break training."""
    try:
        yield
    finally:
        gc.unfreeze()  # what a tune-up in this process has frozen would not be found
        for each in gc.get_objects():
            if type(each) is functools._lru_cache_wrapper and _is_of_own_code(each.__wrapped__):
                each.cache_clear()


def _is_of_own_code(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and is_own(code.co_filename)
