"""One optimizer step of one rank on tensors without data, run by the engine's own code, with every storage recorded."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from paceline.config.experiment import ExperimentConfig
from paceline.engine.blocks import find_blocks
from paceline.engine.build_optimizer import build_optimizer
from paceline.engine.build_task import build_task
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import LocalForwardBackward, divide_by_weight
from paceline.engine.gradient_noise import GradientNoise
from paceline.engine.loading import Transfer
from paceline.engine.order import MicroBatch
from paceline.engine.output_checks import checked_output
from paceline.engine.precision import Precision
from paceline.engine.prepare import MEMORY_FORMATS, prepare
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.strategy import Strategy
from paceline.engine.trial_steps import uncompiled
from paceline.errors import ConfigError, Problem
from paceline.garbage_collection import collector_paused
from paceline.memory.exchange import Buckets
from paceline.memory.fakes import on_fakes, without_data
from paceline.memory.kernels import Kernels
from paceline.memory.timeline import Timeline
from paceline.memory.tracking import StorageTracker
from paceline.tasks._task import Task

CPU = torch.device("cpu")
ALONE = DistContext(0, 1, CPU)
TRACED_AS = {"16-mixed": "bf16-mixed"}
"""Precisions that the CPU does not support, and one that takes as much memory."""

How = Literal["fake", "converted", "real"]
"""Kind of tensors: `fake` from the start; `converted` to fake ones after the model was built with data; or `real`."""
BatchMaker = Callable[[int], Any]
"""Returns a micro batch with this number of samples."""


@dataclass(frozen=True)
class Step:
    """The step to be traced."""

    size: int
    """Samples of a micro batch."""
    accumulates: bool = False
    """True if the optimizer step has several micro batches. The earlier ones take no more memory than the last one."""
    exchanges: bool = False
    """True if gradients are exchanged with other ranks by DDP."""
    ahead: bool = False
    """True if the next batch is copied to the device during a step."""


@dataclass
class Traced:
    """A model with its optimizer, after its first step."""

    config: ExperimentConfig
    task: Task
    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    parameters: list[nn.Parameter]

    @property
    def aside(self) -> bool:
        """True if the gradients of each micro batch are set aside, instead of added up where they are."""
        return self.config.optimizer.lr_scaling == "adascale" or self.config.trainer.noise_scale


def trace(
    config: ExperimentConfig, step: Step, make_batch: BatchMaker, kernels: Kernels | None = None, how: How = "fake"
) -> Timeline:
    """Trace the second optimizer step.

    Args:
        kernels: measures the scratch memory of the operations. None leaves it out.

    Raises:
        Exception: any error that the user's code raises on tensors without data.
    """
    with _model_of(config, how) as task, collector_paused():
        traced = _after_first_step(config, task)
        if step.accumulates and not traced.aside:
            for parameter in traced.parameters:
                parameter.grad = torch.zeros_like(parameter)
        buckets = Buckets(config.parallel, traced.parameters) if step.exchanges else None
        tracker = StorageTracker(kernels)
        _assign_roles(tracker, traced, buckets)
        with kernels.profiled() if kernels is not None else nullcontext(), tracker:
            _run(traced, step, make_batch, buckets)
        return tracker.timeline()


def count_flops(config: ExperimentConfig, size: int, make_batch: BatchMaker, how: How = "fake") -> tuple[float, float]:
    """Return the floating-point operations per sample of the forward and of the backward pass. A multiply-add counts as
    two. Recomputation by activation checkpointing is not counted."""
    plain = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"activation_checkpointing": "none"})}
    )
    with _model_of(plain, how) as task:
        traced = _after_first_step(plain, task)
        batch = next(_batches(traced, Step(size), make_batch, None))[1]
        with FlopCounterMode(display=False) as forward, traced.precision.autocast():
            output = checked_output(traced.model(batch))
        with FlopCounterMode(display=False) as backward:
            output.loss_sum.backward()  # type: ignore[no-untyped-call]
    return forward.get_total_flops() / size, backward.get_total_flops() / size


def count_parameters(config: ExperimentConfig, how: How = "fake") -> tuple[int, int]:
    """Return the number of the model's parameters, and of those that are trained."""
    with _model_of(config, how) as task:
        traced = _after_first_step(config, task)
    return sum(each.numel() for each in task.parameters()), sum(each.numel() for each in traced.parameters)


def gathered_bytes(config: ExperimentConfig, how: How = "fake") -> int:
    """Return the bytes of unsharded weights and gradients that a rank of `fsdp` holds at once.

    These are the weights outside of blocks, and, each as large as the largest block: the weights of this block and of
    the next one, the gradients, and their exchanged copy in float32.
    """
    share = 0.5 if config.parallel.gather_dtype == "mixed" else 1.0
    with _model_of(config, how) as task:
        blocks = [_parameter_bytes(block) for _, block in find_blocks(task.model)]
        outside = _parameter_bytes(task) - sum(blocks)
        return int(share * outside + (3 * share + 1) * max(blocks, default=0))


def _parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


@contextmanager
def _model_of(config: ExperimentConfig, how: How) -> Iterator[Task]:
    """Build the task, inside the mode that it must be used in."""
    with_data = _build(config) if how != "fake" else None
    with nullcontext() if how == "real" else on_fakes() as mode:
        if with_data is not None and mode is not None:
            without_data(with_data, mode)
        yield _build(config) if with_data is None else with_data
    if how != "fake":
        gc.collect()  # checkpointed blocks refer to themselves, and hold the weights


def _build(config: ExperimentConfig) -> Task:
    task = build_task(config)
    if not task.automatic_optimization:
        reason = "steps its optimizers itself, and only a step with one optimizer can be predicted"
        raise ConfigError(
            [Problem("manual-optimization", reason, "task", hint="measure the memory in a short training")]
        )
    return task


def _after_first_step(config: ExperimentConfig, task: Task) -> Traced:
    """Return everything that a rank holds between its first and its second step."""
    name = config.trainer.precision
    precision = Precision(TRACED_AS.get(name, name), CPU)
    model = prepare(task, uncompiled(config.trainer), precision, Strategy(config.parallel, ALONE))
    optimizer = build_optimizer(config, task, config.optimizer.lr, CPU)
    task.train()
    parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # for its state
    optimizer.zero_grad(set_to_none=config.trainer.zero_grad == "set_to_none")
    return Traced(config, task, model, optimizer, precision, parameters)


def _assign_roles(tracker: StorageTracker, traced: Traced, buckets: Buckets | None) -> None:
    tracker.add([*traced.task.parameters(), *traced.task.buffers()], "weights")
    tracker.add([list(traced.optimizer.state[parameter].values()) for parameter in traced.parameters], "optimizer")
    tracker.add([parameter.grad for parameter in traced.parameters], "gradients")
    if buckets is not None:
        tracker.add(buckets.tensors, "gradients")

    def _noted(parameter: torch.Tensor) -> None:
        tracker.add([parameter.grad], "gradients")

    for parameter in traced.parameters:
        parameter.register_post_accumulate_grad_hook(_noted)  # type: ignore[no-untyped-call]


def _run(traced: Traced, step: Step, make_batch: BatchMaker, buckets: Buckets | None) -> None:
    """Run the step as the trainer does; with accumulated gradients, only its last micro batch."""
    config, parameters = traced.config, traced.parameters
    observer = None
    if traced.aside and step.accumulates and not step.exchanges:
        observer = GradientNoise(parameters, ALONE)
    batches = _batches(traced, step, make_batch, buckets)
    forward_backward = LocalForwardBackward(
        traced.model, traced.precision, ALONE, RunningLoss(ALONE), StepSeeds(config.seed, ALONE), observer
    )
    done = forward_backward(batches, 1)
    if not traced.task.weight_is_samples:
        divide_by_weight(done, parameters, Strategy(config.parallel, ALONE).layout, ALONE)
    traced.precision.step(traced.optimizer, parameters, config.trainer.max_grad_norm)


def _batches(
    traced: Traced, step: Step, make_batch: BatchMaker, buckets: Buckets | None
) -> Iterator[tuple[MicroBatch, Any]]:
    memory_format = MEMORY_FORMATS[traced.config.trainer.memory_format]
    transfer = Transfer(CPU, traced.precision.input_dtype, memory_format)
    ahead = transfer(make_batch(step.size)) if step.ahead else None
    for is_last in (False, True) if traced.aside and step.accumulates else (True,):
        if buckets is not None:
            buckets.exchanging = is_last
        batch = transfer(make_batch(step.size))
        yield MicroBatch(torch.arange(1), step.size, is_last), batch
    del ahead
