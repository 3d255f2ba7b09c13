"""The contract of `TaskOutput`: the loss is a sum, and its weight is what the sum is to be divided by.

A mean in place of the sum trains without an error, with a learning rate that is too small by a factor of the micro
batch size. So the first training step is checked, and no other one.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline._compat.torch import is_compiler_imported, own_buffers
from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.forward_backward import Batches, StepStats
from paceline.engine.order import MicroBatch
from paceline.engine.output_checks import checked_output
from paceline.engine.precision import Precision
from paceline.engine.seeding import seed_everything
from paceline.engine.trial_steps import undisturbed
from paceline.errors import UnusableCode
from paceline.tasks._task import Task

NEAR = 0.05
"""Relative difference between a loss and the mean of its halves below which it may be a mean."""
FAR = 0.25
"""Relative difference between a loss and the sum of its halves above which it cannot be a sum."""


class _Sum(NamedTuple):
    """Loss and weight of a part of a batch."""

    loss: float
    weight: float


class WeightContract:
    """Checks the first training step of a rank. Runs no collective operation and changes no weight, buffer, batch or
    random number.

    Args:
        is_whole: this rank holds the whole task, so that a forward pass waits for no other rank. Only then are the
            first micro-batch and its two halves evaluated, to tell a mean from a sum.
    """

    def __init__(self, task: Task, precision: Precision, device: torch.device, is_whole: bool) -> None:
        self._task = task
        self._precision = precision
        self._device = device
        self._is_whole = is_whole
        self._samples = 0

    def watch(self, batches: Batches) -> Batches:
        """Pass the micro-batches of the first step on, after the first one was checked.

        Raises:
            UnusableCode: the loss is a mean.
        """
        for index, (micro_batch, batch) in enumerate(batches):
            if index == 0 and self._is_whole:
                self._check_sum(micro_batch, batch)
            self._samples += micro_batch.ids.numel() if micro_batch.counts else 0
            yield micro_batch, batch

    def check_weights(self, stats: StepStats) -> None:
        """Compare the weights of the first step with its samples, before the update.

        Raises:
            UnusableCode: the weight is said to be the number of samples, and is not.
        """
        if not (self._task.weight_is_samples and stats.weights):
            return
        weight = float(sum(stats.weights))
        if weight != self._samples:
            raise UnusableCode(
                f"the task's weight is {weight:g} for {self._samples} samples, but its weight_is_samples is True. Set "
                "weight_is_samples = False in the task's class, or give the number of samples as the weight",
                "weight-not-samples",
                weight=weight,
                samples=self._samples,
            )

    def _check_sum(self, micro_batch: MicroBatch, batch: Any) -> None:
        samples = micro_batch.ids.numel()
        parts = halves(batch, samples)
        sums = self._evaluated([batch, *parts]) if parts is not None else None
        if sums is None:
            return
        whole, first, second = sums
        if not is_mean(whole, first, second, first_share=(samples // 2) / samples):
            return
        raise UnusableCode(
            f"the task's loss is a mean, not a sum: it is {whole.loss:.4g} for the first {samples} samples, and "
            f"{first.loss:.4g} and {second.loss:.4g} for their halves. Return TaskOutput.from_mean(loss, weight), or "
            "add the losses up (reduction='sum')",
            "mean-not-sum",
            samples=samples,
            loss=whole.loss,
            halves=[first.loss, second.loss],
        )

    @torch.no_grad()
    def _evaluated(self, parts: list[Any]) -> list[_Sum] | None:
        """Loss and weight of each part in evaluation mode; None where that fails, or draws random numbers."""
        # a stance makes torch import the compiler, which is there already where anything is compiled
        eager: Any = torch.compiler.set_stance("force_eager") if is_compiler_imported() else nullcontext()
        with undisturbed(self._device), _in_evaluation(self._task), eager:
            self._seed()
            untouched = self._drawn()
            self._seed()
            try:
                sums = [self._sum(part) for part in parts]
            except Exception:  # whatever the user's code raises, it raises in training, or has no evaluation of it
                return None
            return sums if self._drawn() == untouched else None

    def _sum(self, part: Any) -> _Sum:
        with self._precision.autocast():
            # of a copy: the task may compute in place
            output = checked_output(self._task(map_tensors(part, torch.clone)))
        return _Sum(float(output.loss_sum), float(output.weight))

    def _seed(self) -> None:
        seed_everything(0)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(0)

    def _drawn(self) -> list[float]:
        """The next number of each generator."""
        numbers = [torch.rand(()).item(), np.random.rand(), random.random()]
        return [*numbers, torch.rand((), device=self._device).item()] if self._device.type == "cuda" else numbers


def halves(batch: Any, samples: int) -> tuple[Any, Any] | None:
    """Cut a batch in two along its first dimension; None where it holds anything that cannot be cut."""
    tensors = list(tensors_in(batch))
    if samples < 2 or not tensors or any(each.shape[:1] != (samples,) for each in tensors) or _hides_tensors(batch):
        return None
    cut = samples // 2
    return map_tensors(batch, lambda tensor: tensor[:cut]), map_tensors(batch, lambda tensor: tensor[cut:])


def is_mean(whole: _Sum, first: _Sum, second: _Sum, first_share: float) -> bool:
    """True if the loss of a batch is clearly a mean of the losses of its halves, while its weight is their sum.

    Args:
        first_share: share of the samples that the first half has.
    """
    weight, total = first.weight + second.weight, first.loss + second.loss
    if min(first.weight, second.weight) <= 0 or abs(whole.weight - weight) > 1e-3 * weight:
        return False
    means = [
        (first.loss * first.weight + second.loss * second.weight) / weight,
        first.loss * first_share + second.loss * (1 - first_share),
    ]
    is_near = any(abs(whole.loss - mean) <= NEAR * abs(mean) for mean in means)
    return is_near and abs(whole.loss - total) > FAR * abs(total)


def _hides_tensors(batch: Any) -> bool:
    found: list[Any] = []
    map_tensors(batch, lambda tensor: tensor, found.append)
    return bool(found)


@contextmanager
def _in_evaluation(task: Task) -> Iterator[None]:
    """Evaluation mode, without what a module's own `train` or `eval` would do. Afterwards modes and buffers are as they
    were."""
    modes = [(module, module.training) for module in task.modules()]
    names = [(own_buffers(module), dict(own_buffers(module))) for module in task.modules()]
    contents = [(buffer, buffer.clone()) for buffer in task.buffers()]
    for module, _ in modes:
        module.training = False
    task.counts = False
    try:
        yield
    finally:
        task.counts = True
        for module, was_training in modes:
            module.training = was_training
        for buffers, before in names:
            buffers.update(before)
        for buffer, content in contents:
            _restore(buffer, content)


def _restore(buffer: Tensor, content: Tensor) -> None:
    if not torch.equal(buffer, content):
        buffer.copy_(content)
