"""Trial compilation before training, on a throw-away batch: a failure costs a warning and not the run."""

import warnings
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline._compat.torch import compile_errors_raised, inside_ddp_forward, own_buffers
from paceline.config.sections import TrainerConfig
from paceline.engine.compilation import CUDA_GRAPHS, reason_of, report_compiler_warnings, undo_compilation
from paceline.engine.data_stream import MapStyleStream
from paceline.engine.ddp import communicates
from paceline.engine.loading import BatchLoader
from paceline.engine.order import MicroBatch, evaluation_order
from paceline.engine.trainer import Trainer


def try_compilation(trainer: Trainer, validation_loaders: Collection[BatchLoader], config: TrainerConfig) -> None:
    """Compile for training and for evaluation; if that fails on any rank, continue without compilation on all ranks.

    Every rank must call it, before training begins. It leaves no gradients, and restores buffers and torch's
    generators. The ranks exchange only the reasons of failures. State that a module keeps outside its buffers is not
    restored.

    Raises:
        Exception: the task itself raised it, also without the compiler.
    """
    report_compiler_warnings(lambda message: _warn(trainer, message, "partly-compiled"))
    waits = trainer.dist.world_size > 1 and communicates(trainer.state.task)
    if waits or trainer.state.layout.is_spread or not isinstance(trainer.data, MapStyleStream):
        return  # a forward pass is a collective operation: a rank that failed would leave the others waiting
    runs = 2 if config.compile in CUDA_GRAPHS else 1  # the first allocates, the second records
    reason = _failure(trainer, validation_loaders, runs)
    if reason is not None:
        undo_compilation(trainer.state.task)
        _run(trainer, validation_loaders)
    reasons = trainer.dist.union([] if reason is None else [f"on rank {trainer.dist.rank}: {reason}"])
    if reasons:
        undo_compilation(trainer.state.task)
        also = ", and so does activation_checkpointing" if config.activation_checkpointing == "budget" else ""
        _warn(trainer, f"falls back to none{also}, since {config.compile} failed {reasons[0]}", "not-compiled")


def _warn(trainer: Trainer, message: str, code: str) -> None:
    if trainer.dist.is_first:
        trainer.reporter.event("warning", message=f"trainer.compile: {message}", code=code)


def _failure(trainer: Trainer, validation_loaders: Collection[BatchLoader], runs: int) -> str | None:
    try:
        with compile_errors_raised(), warnings.catch_warnings():
            # torch traces the gradients in its anomaly mode, which warns of what fails with a stack; the reason says it
            warnings.filterwarnings("ignore", "Error detected in")
            for _ in range(runs):
                _run(trainer, validation_loaders)
    except Exception as error:  # a compiler's errors have no common class
        return reason_of(error)
    return None


def _run(trainer: Trainer, validation_loaders: Collection[BatchLoader]) -> None:
    task = trainer.state.task
    with _leaving_no_trace(task, trainer.dist.device):
        _train(trainer)
        task.eval()
        _evaluate(trainer, validation_loaders)


def _train(trainer: Trainer) -> None:
    task, order, loader = trainer.state.task, trainer.map_style.order, trainer.map_style.loader
    batch = _fetch(loader, order.step_micro_batches(0, 0)[0])
    with _as_if_in(trainer.model), trainer.state.precision.autocast():
        output = task(batch)
    # unlike `backward`, it neither writes gradients down nor starts their exchange
    torch.autograd.grad(output.loss_sum, trainer.step.parameters, allow_unused=True)


def _evaluate(trainer: Trainer, loaders: Collection[BatchLoader]) -> None:
    ranks, size = trainer.dist, trainer.map_style.order.micro_batch_size
    for loader in loaders:
        batches = evaluation_order(len(loader.fetcher), size, ranks.rank, ranks.world_size)
        for micro_batch in batches[:1]:
            batch = _fetch(loader, micro_batch)
            with torch.no_grad(), trainer.state.precision.autocast():
                trainer.state.task(batch)


def _fetch(loader: Any, micro_batch: MicroBatch) -> Any:
    return loader.transfer(loader.fetcher.fetch(0, micro_batch.ids))


def _as_if_in(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which the compiler cuts the graph at DDP's buckets, to overlap exchange and backward."""
    return inside_ddp_forward(model) if isinstance(model, DistributedDataParallel) else nullcontext()


@contextmanager
def _leaving_no_trace(task: nn.Module, device: torch.device) -> Iterator[None]:
    buffers = {name: (buffer, buffer.clone()) for name, buffer in task.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    task.train()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        task.train()
        _put_back(task, buffers)


@torch.no_grad()
def _put_back(task: nn.Module, buffers: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    for name, (buffer, before) in buffers.items():
        buffer.copy_(before)
        parent, _, own_name = name.rpartition(".")
        own_buffers(task.get_submodule(parent))[own_name] = buffer  # a module may have put a new one in its place
