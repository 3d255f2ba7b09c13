"""The micro batches of an optimizer step on their way through the stages of a pipeline.

PyTorch's schedules, `torch.distributed.pipelining`: 1F1B (Narayanan et al. 2019, arXiv:1806.03377) where there are at
least as many micro batches as stages, else GPipe (Huang et al. 2019, arXiv:1811.06965).
"""

from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from paceline._compat.torch import run_schedule
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import Batches, StepStats
from paceline.engine.monitoring.own_time import OwnTime
from paceline.engine.order import MicroBatch
from paceline.engine.pipeline_line import Line
from paceline.engine.precision import Precision
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.tasks._task import Task

Scheduled = tuple[ScheduleGPipe | Schedule1F1B, PipelineStage]
MAX_SCHEDULES = 4
"""Schedules that are kept, each with the memory that it receives into: of a full step, and of an epoch's last one."""


class PipelineForwardBackward:
    """The micro batches of a step, through all stages at once; every rank of a pipeline gets the same ones."""

    def __init__(
        self,
        line: Line,
        task: Task,
        precision: Precision,
        data_ranks: DistContext,
        running: RunningLoss,
        seeds: StepSeeds,
        own_time: OwnTime,
    ) -> None:
        self._line = line
        self._task = task
        self._precision = precision
        self._data_ranks = data_ranks
        self._running = running
        self._seeds = seeds
        self._own_time = own_time
        self._step = 0
        self._weights: list[float | Tensor] = []
        self._schedules: dict[Any, Scheduled] = {}

    def __call__(self, batches: Batches, step: int) -> StepStats:
        """Take the micro batches of one step from `batches`."""
        self._weights, self._step = [], step
        self._line.module.begin_step(step)
        self._own_time.start()
        taken = _one_step(batches)
        inputs = [self._input_of(batch, place) for place, (_, batch) in enumerate(taken)]
        self._own_time.stop()  # all else goes from stage to stage
        places = range(len(taken))
        # a schedule takes micro batches of one shape; only an epoch's last step has others
        for _, group in groupby(places, key=lambda place: (inputs[place].shape, inputs[place].dtype)):
            self._run([(place, *taken[place], inputs[place]) for place in group])
        self._sum_gradients()
        self._own_time.end_step()
        return StepStats(taken[-1][0].step_samples, self._weights, taken[-1][0].ends_epoch)

    def _input_of(self, batch: Any, place: int) -> Tensor:
        # what the task draws before it calls its model must be the same on all stages, and with the loss
        self._seeds.apply(self._step, place)
        return self._line.input_of(batch)

    def _run(self, group: list[tuple[int, MicroBatch, Any, Tensor]]) -> None:
        first = group[0][-1]
        schedule, stage = self._schedule(len(group), first)
        arguments = [(value,) if self._line.is_first else () for *_, value in group]
        targets = [(place, micro_batch, batch) for place, micro_batch, batch, _ in group]
        try:
            run_schedule(schedule, stage, arguments, targets if self._line.is_last else None)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # the model's own, which the schedule puts into one that says less

    def _schedule(self, count: int, first: Tensor) -> Scheduled:
        key = count, first.shape, first.dtype
        if key not in self._schedules:
            if len(self._schedules) >= MAX_SCHEDULES:
                self._schedules.clear()
            kind = Schedule1F1B if count >= self._line.stages else ScheduleGPipe
            stage = self._stage(first)
            self._schedules[key] = kind(stage, count, loss_fn=self._loss, scale_grads=False), stage
        return self._schedules[key]

    def _stage(self, first: Tensor) -> PipelineStage:
        line = self._line
        enters, leaves = line.shapes(first)
        return PipelineStage(
            line.module,
            line.stage,
            line.stages,
            line.device,
            input_args=first if line.is_first else enters.requires_grad_(),
            output_args=leaves.requires_grad_(),
            group=line.group,
        )

    def _loss(self, value: Tensor, target: tuple[int, MicroBatch, Any]) -> Tensor:
        place, micro_batch, batch = target
        self._seeds.apply(self._step, place)
        with self._precision.autocast():
            output = self._line.tap.output_of(self._task, batch, value)
        if micro_batch.counts:
            self._running.add(output)
            self._weights.append(output.weight)
        return output.loss_sum * (1 / micro_batch.step_samples if micro_batch.counts else 0.0)

    def _sum_gradients(self) -> None:
        if self._data_ranks.world_size == 1:
            return
        gradients = [each.grad for each in self._task.parameters() if each.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):  # in the same order on all ranks
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = self._data_ranks.sum(torch.cat([gradient.reshape(-1) for gradient in alike]))
            parts = torch.split(flat, [gradient.numel() for gradient in alike])
            for gradient, part in zip(alike, parts, strict=True):
                gradient.copy_(part.view(gradient.shape))


def _one_step(batches: Batches) -> list[tuple[MicroBatch, Any]]:
    taken = []
    for micro_batch, batch in batches:
        taken.append((micro_batch, batch))
        if micro_batch.is_last:
            break
    return taken
