"""One optimizer step of one rank on tensors without data, by the engine's own code, with every storage noted."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.experiment import ExperimentConfig
from paceline.engine.build import build_adascale, build_optimizer, require_trainable, seed_model
from paceline.engine.loading import Transfer
from paceline.engine.order import MicroBatch
from paceline.engine.passes import LocalPass, divide_by_weight
from paceline.engine.precision import Precision
from paceline.engine.prepare import MEMORY_FORMATS, prepare
from paceline.engine.ranks import Ranks
from paceline.engine.running import RunningLoss
from paceline.engine.state import trainable_parameters
from paceline.engine.strategy import Strategy
from paceline.engine.trial_steps import uncompiled
from paceline.study.memory.exchange import Buckets
from paceline.study.memory.fakes import on_fakes
from paceline.study.memory.kernels import Kernels
from paceline.study.memory.timeline import Timeline
from paceline.study.memory.tracking import StorageTracker
from paceline.tasks._task import Task

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
STAND_IN = {"16-mixed": "bf16-mixed"}
"""Formats that are not computed with on CPU, and one that takes as much."""


@dataclass(frozen=True)
class Step:
    """The step to be traced."""

    size: int
    """Samples of a micro batch."""
    micro_batches: int
    """Of the optimizer step. More than 2 take no more than 2."""
    exchanges: bool = False
    """Whether there are other ranks that gradients are exchanged with, by DDP."""
    ahead: bool = False
    """Whether the next batch comes to the device while one is computed."""


@dataclass
class Traced:
    """A model with its optimizer, whose first step is over."""

    config: ExperimentConfig
    task: Task
    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    parameters: list[nn.Parameter]


def trace(config: ExperimentConfig, step: Step, make_batch: Callable[[int], Any], kernels: Kernels | None = None) -> Timeline:
    """The second optimizer step, on fake tensors.

    Args:
        make_batch: gives a micro batch of so many samples.
        kernels: measures what the operations take beside their results; None: that is left out.

    Raises:
        Exception: whatever the user's code raises where it meets tensors without data.
    """
    with on_fakes():
        traced = built(config, step)
        buckets = Buckets(config.parallel, traced.parameters) if step.exchanges else None
        tracker = StorageTracker(kernels)
        tracker.add([*traced.task.parameters(), *traced.task.buffers()], "weights")
        tracker.add([traced.optimizer.state[parameter] for parameter in traced.parameters], "optimizer")
        tracker.add([parameter.grad for parameter in traced.parameters], "gradients")
        if buckets is not None:
            tracker.add(buckets.tensors, "gradients")
        for parameter in traced.parameters:
            parameter.register_post_accumulate_grad_hook(lambda each: tracker.add([each.grad], "gradients"))
        with kernels.profiled() if kernels is not None else nullcontext(), tracker:
            run_step(traced, step, make_batch, buckets)
    return tracker.timeline()


def built(config: ExperimentConfig, step: Step) -> Traced:
    """Everything that a rank holds between its first and its second step."""
    seed_model(config.seed)
    task = config.task.build(config.model.build())
    require_trainable(config, task)
    name = config.trainer.precision
    precision = Precision(STAND_IN.get(name, name), CPU)
    model = prepare(task, uncompiled(config.trainer), precision, Strategy(config.parallel, ALONE))
    optimizer = build_optimizer(config, task, config.optimizer.lr, CPU)
    task.train()
    parameters = trainable_parameters(task, Strategy(config.parallel, ALONE).layout)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # for its state
    optimizer.zero_grad(set_to_none=config.trainer.zero_grad == "set_to_none")
    return Traced(config, task, model, optimizer, precision, parameters)


def run_step(traced: Traced, step: Step, make_batch: Callable[[int], Any], buckets: "Buckets | None" = None) -> None:
    """The step itself, as the trainer makes it."""
    config, parameters = traced.config, traced.parameters
    if config.trainer.zero_grad == "zero":
        traced.optimizer.zero_grad(set_to_none=False)
    micro_batches = min(step.micro_batches, 2)
    adascale = None
    if config.optimizer.lr_scaling == "adascale" and not step.exchanges:
        adascale = build_adascale(config, parameters, _sizes(step), ALONE)
    batches = _batches(traced, step, micro_batches, make_batch, buckets)
    run = LocalPass(traced.model, traced.precision, ALONE, RunningLoss(ALONE), config.seed, adascale)
    done = run(batches, 1)
    if not traced.task.weight_is_samples:
        divide_by_weight(done, parameters, Strategy(config.parallel, ALONE).layout, ALONE)
    traced.precision.step(traced.optimizer, parameters, config.trainer.max_grad_norm)


def _sizes(step: Step) -> Any:
    from paceline.config.batch_sizes import BatchSizes

    return BatchSizes(step.size * step.micro_batches, step.size, step.micro_batches, 1)


def _batches(
    traced: Traced, step: Step, count: int, make_batch: Callable[[int], Any], buckets: "Buckets | None"
) -> Iterator[tuple[MicroBatch, Any]]:
    trainer = traced.config.trainer
    transfer = Transfer(CPU, traced.precision.input_dtype, MEMORY_FORMATS[trainer.memory_format])
    ids = torch.arange(1)
    ahead = transfer(make_batch(step.size)) if step.ahead else None
    for index in range(count):
        is_last = index + 1 == count
        if buckets is not None:
            buckets.exchanging = is_last
        batch = transfer(make_batch(step.size))
        yield MicroBatch(ids, step.size * count, is_last), batch
    del ahead
