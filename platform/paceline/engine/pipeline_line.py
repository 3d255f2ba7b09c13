"""One pipeline, seen from one of its stages: its input, its output, and the neighbouring stages."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.engine.output_checks import checked_output
from paceline.engine.pipeline_cut import Link
from paceline.engine.precision import Precision
from paceline.engine.seeding import StepSeeds
from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class _Captured(BaseException):
    """Carries the model's input out of the task, past any `except Exception` in its code."""


class ModelTap:
    """Replaces the model's forward: captures the model's input, and returns the pipeline's output to the task.

    A task works in a pipeline if it calls its model once, with one tensor. Its code before that call runs twice per
    micro batch, with the same random numbers.
    """

    def __init__(self) -> None:
        self._output: Tensor | None = None
        self._is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._output is None:
            raise _Captured(args, kwargs)
        if self._is_used:
            raise UnusableCode(
                "parallel.strategy pipeline: the task must call its model once, not twice", "pipeline-model-calls"
            )
        self._is_used = True
        return self._output

    def input_of(self, task: Task, batch: Any) -> Tensor:
        """Return the input that the task would pass to its model.

        Raises:
            UnusableCode: the input is not one tensor that depends only on the data, or the model is not called.
        """
        try:
            task(batch)
        except _Captured as captured:
            args, kwargs = captured.args
            if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].requires_grad:
                return args[0]
        except (RuntimeError, NotImplementedError) as error:
            if "meta" not in str(error):
                raise
        raise UnusableCode(
            "parallel.strategy pipeline: the task must call its model with one tensor, without using parameters before",
            "pipeline-model-calls",
        )

    def output_of(self, task: Task, batch: Any, value: Tensor) -> TaskOutput:
        """Return the task's output, with `value` as the output of its model."""
        self._output, self._is_used = value, False
        try:
            return checked_output(task(batch))
        finally:
            self._output = None


class Stage(nn.Module):
    """This rank's links, one after the other, under autocast and with the random numbers of the micro batch."""

    def __init__(self, links: list[Link], precision: Precision, seeds: StepSeeds) -> None:
        super().__init__()
        self._links = links
        self._precision = precision
        self._seeds = seeds
        self._step = self._index = 0

    def begin_step(self, step: int) -> None:
        """Begin an optimizer step: count its micro batches from 0."""
        self._step, self._index = step, 0

    def forward(self, value: Tensor) -> Tensor:
        """Run the links on the next micro batch, with its random numbers."""
        self._seeds.apply(self._step, self._index)
        self._index += 1
        return self.run(value)

    def run(self, value: Tensor) -> Tensor:
        """Run the links on a value and return the result."""
        with self._precision.autocast():
            for link in self._links:
                value = link.call(value)
        if not isinstance(value, Tensor):
            raise UnusableCode(
                f"parallel.strategy pipeline: a part of the model gives {type(value).__name__}", "pipeline-not-a-chain"
            )
        return value.contiguous()  # a tensor is sent without its strides


class Shapes(NamedTuple):
    """Input and output of a stage, as `meta` tensors without memory."""

    enters: Tensor
    leaves: Tensor


class Line:
    """One pipeline, seen from one of its stages."""

    def __init__(
        self,
        module: Stage,
        tap: ModelTap,
        task: Task,
        stage: int,
        stages: int,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        self.module = module
        self.tap = tap
        self.stage = stage
        self.stages = stages
        self.group = group
        self.device = device
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self._task = task
        self._shapes: dict[Any, Shapes] = {}

    def input_of(self, batch: Any) -> Tensor:
        """Return the input of the first stage for a batch."""
        return self.tap.input_of(self._task, batch)

    def shapes(self, first: Tensor) -> Shapes:
        """Return the shapes of this stage if `first` is the input of the first stage.

        Every stage must ask for the same shapes, in the same order.
        """
        key = first.shape, first.dtype
        if key not in self._shapes:
            self._shapes[key] = self._find_shapes(first)
        return self._shapes[key]

    def forward(self, batch: Any) -> Tensor:
        """Return the output of this stage for a batch, without gradients. Every stage must call it."""
        value = self.input_of(batch)
        shapes = self.shapes(value)
        if not self.is_first:
            value = torch.empty_like(shapes.enters, device=self.device)
            dist.recv(value, group=self.group, group_src=self.stage - 1)
        value = self.module.run(value)
        if not self.is_last:
            dist.send(value.contiguous(), group=self.group, group_dst=self.stage + 1)
        return value

    @torch.no_grad()
    def _find_shapes(self, first: Tensor) -> Shapes:
        # in evaluation mode nothing is changed: neither running statistics nor the random generators
        training = [module for module in self._task.modules() if module.training]
        self._task.eval()
        try:
            enters = first if self.is_first else self._announced()
            leaves = self.module.run(enters)
        finally:
            for module in training:
                module.training = True
        if not self.is_last:
            announcement = [(tuple(leaves.shape), leaves.dtype)]
            dist.send_object_list(announcement, group=self.group, group_dst=self.stage + 1, device=self.device)
        return Shapes(enters.to("meta"), leaves.to("meta"))

    def _announced(self) -> Tensor:
        announcement: list[Any] = [None]
        dist.recv_object_list(announcement, group=self.group, group_src=self.stage - 1, device=self.device)
        shape, dtype = announcement[0]
        return torch.zeros(shape, dtype=dtype, device=self.device)
