"""Trial steps: disposable training steps at a given micro batch size, which leave no state behind.

They take the memory of training on one rank (weights, gradients, optimizer state, activations), so that the peak of the
second step is that of training. They contain no collective operation: if one rank fails, no other rank waits.
"""

import copy
import gc
import random
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.experiment import ExperimentConfig
from paceline.config.sections import TrainerConfig
from paceline.engine.build_strategy import build_strategy
from paceline.engine.ddp import communicates
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.host_allocator import return_freed_memory
from paceline.engine.loading import BatchLoader
from paceline.engine.order import MicroBatch
from paceline.engine.precision import Precision
from paceline.engine.prepare import prepare
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.errors import UnusableCode, text_of
from paceline.tasks._task import Task

STEPS = 2
MICRO_BATCHES = 2
_TOLD_BY_TEXT = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
)


@dataclass(frozen=True)
class Parts:
    """Functions that build the parts of a trial step; each call builds a new one."""

    task: Callable[[], Task]
    optimizer: Callable[[Task], Optimizer]
    loaders: Callable[[], tuple[BatchLoader, dict[str, BatchLoader]]]
    """Function that builds the loaders of the training and validation sets: all of them take memory during training."""


def trial_steps(config: ExperimentConfig, parts: Parts, loader: BatchLoader, ranks: DistContext, size: int) -> int:
    """Run two optimizer steps over two micro batches of `size` samples each.

    Returns:
        Bytes that training takes in addition.
    """
    alone = DistContext(0, 1, ranks.device)
    precision = Precision(config.trainer.precision, ranks.device)
    task = parts.task()
    strategy = build_strategy(config.parallel, alone)
    model = prepare(task, uncompiled(config.trainer), precision, strategy, lambda message: None)
    optimizer = parts.optimizer(task)
    task.train()
    parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
    forward_backward = LocalForwardBackward(model, precision, alone, RunningLoss(alone), StepSeeds(config.seed, alone))
    batches = [loader.fetcher.fetch(0, ids) for ids in _sample_ids(len(loader.fetcher), size)]
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=config.trainer.zero_grad == "set_to_none")
        # all on the device at once: in training, the next micro batch is copied there while this one is computed
        on_device = [loader.transfer(batch) for batch in batches]
        forward_backward(_as_micro_batches(on_device, size), step)
        _clear(parameters)
        precision.step(optimizer, parameters, config.trainer.max_grad_norm)
    return _copies_of_gradients(config, ranks) * sum(each.numel() * each.element_size() for each in parameters)


def _copies_of_gradients(config: ExperimentConfig, ranks: DistContext) -> int:
    """Return the largest number of copies of the gradients that training holds beside the parameters' own."""
    exchanged = ranks.world_size > 1  # DDP's buckets, also as views: in the first step they are laid out a second time
    hook = config.parallel.comm_hook
    # powersgd holds the error of the step before, and works on a copy
    compressed = {"none": 0, "powersgd": 2}.get(hook, 1) if exchanged else 0
    aside = config.optimizer.lr_scaling == "adascale" or config.trainer.noise_scale
    return exchanged + compressed + aside


def independent(parts: Parts) -> Parts:
    """Return the parts with tasks that share no tensor with the task that will be trained.

    User code may keep a model, or a part of one, and reuse it in each call.

    Raises:
        UnusableCode: the model's forward pass is a collective operation.
    """
    task = parts.task()
    if communicates(task):
        raise UnusableCode(
            "data.micro_batch_size max: the model has SyncBatchNorm, whose forward pass waits for the other workers, "
            "while a trial step that does not fit ends on one of them alone; write a number",
            "synchronised-model",
        )
    tensors = [weakref.ref(tensor) for tensor in _tensors(task)]
    del task
    gc.collect()
    if not any(tensor() is not None for tensor in tensors):
        return parts
    return replace(parts, task=lambda: copy.deepcopy(parts.task()))


def _tensors(task: Task) -> Iterator[torch.Tensor]:
    yield from task.parameters()
    yield from task.buffers()


def uncompiled(trainer: TrainerConfig) -> TrainerConfig:
    """Return the same techniques without the compiler, which takes long and needs no additional memory."""
    without: dict[str, Any] = {"compile": "none"}
    if trainer.activation_checkpointing == "budget":
        without["activation_checkpointing"] = "none"  # `budget` is part of the compiler; without it, an upper bound
    return trainer.model_copy(update=without)


def _sample_ids(samples: int, size: int) -> Iterator[torch.Tensor]:
    for index in range(MICRO_BATCHES):
        yield torch.arange(index * size, (index + 1) * size) % samples


def _as_micro_batches(batches: list[Any], size: int) -> Iterator[tuple[MicroBatch, Any]]:
    ids = torch.arange(size)
    for index, batch in enumerate(batches):
        yield MicroBatch(ids, size * len(batches), is_last=index + 1 == len(batches)), batch


def _clear(parameters: list[nn.Parameter]) -> None:
    # With zeros the update takes the same memory, is never skipped by fp16's scaler, and keeps the weights usable for
    # user code at any learning rate.
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception means that memory ran out, on a GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    told = text_of(error).lower() if isinstance(error, RuntimeError) else ""
    return any(text in told for text in _TOLD_BY_TEXT)


def ran_out(body: Callable[[], None], device: torch.device) -> bool:
    """Call `body`, and return True if it ran out of memory. Its memory is released in both cases. Other errors pass."""
    try:
        with undisturbed(device):
            body()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _drop_frames(error)
        failed = True
    else:
        failed = False
    release(device)
    return failed


def release(device: torch.device) -> None:
    """Free the memory of unreferenced objects."""
    gc.collect()  # checkpointed blocks refer to themselves
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        return_freed_memory()


@contextmanager
def quick_release() -> Iterator[None]:
    """Make `release` collect only objects that the body has made: older objects would take a third of a second."""
    if gc.get_freeze_count():  # another caller has frozen objects, which `unfreeze` would release
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _drop_frames(error: BaseException | None) -> None:
    # the frames hold the tensors, and an exception that was caught in between holds frames of its own
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Restore the random generators afterwards, as if the body had drawn no numbers."""
    host, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(host)
        random.setstate(python)
        np.random.set_state(numpy)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
