"""The techniques in the order in which they are applied to a model. The order is the point: keep it readable."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.config.sections import ParallelConfig, TrainerConfig
from paceline.engine.activation_checkpointing import apply_activation_checkpointing
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.tasks._task import Task

AS_IT_IS = nullcontext()
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def apply_process_settings(trainer: TrainerConfig) -> None:
    """Settings of the whole process. Before anything is computed, since cuDNN remembers its first choice."""
    torch.set_float32_matmul_precision(trainer.float32_matmul_precision)
    torch.backends.cudnn.benchmark = trainer.cudnn_benchmark
    if trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses without it
    torch.use_deterministic_algorithms(trainer.deterministic)


def prepare(
    task: Task, trainer: TrainerConfig, parallel: ParallelConfig, precision: Precision, ranks: Ranks
) -> nn.Module:
    """What the training step calls: `task` with every configured technique applied to it, in place."""
    # 1. device, number format and layout, since everything after looks at the parameters
    apply_format(task, precision.parameter_dtype, trainer.memory_format, ranks.device)
    # 2. checkpoints around blocks, inside of whatever wraps the whole
    apply_activation_checkpointing(task.model, trainer.activation_checkpointing)
    # 3. the gradient exchange outermost: it has to see every parameter's final form
    return apply_ddp(task, parallel, ranks)


def apply_format(task: Task, dtype: torch.dtype, memory_format: str, device: torch.device) -> None:
    """Move the task to the device; float64 for proofs; layout of its 4-d weights."""
    if dtype is torch.float64:
        task.double()
    task.to(device=device, memory_format=MEMORY_FORMATS[memory_format])  # type: ignore[call-overload]


def apply_ddp(task: Task, parallel: ParallelConfig, ranks: Ranks) -> nn.Module:
    """Average gradients over the ranks as they appear in backward. A world of one needs no wrapper."""
    if ranks.world_size == 1:
        return task
    options: dict[str, Any] = {} if parallel.bucket_cap_mb is None else {"bucket_cap_mb": parallel.bucket_cap_mb}
    return DistributedDataParallel(
        task,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=parallel.gradient_as_bucket_view,
        static_graph=parallel.static_graph,
        **options,
    )


def gradient_exchange(model: nn.Module, now: bool) -> AbstractContextManager[None]:
    """The context of a micro batch's forward *and* backward: gradients are exchanged only when `now` is true."""
    if now or not isinstance(model, DistributedDataParallel):
        return AS_IT_IS
    return model.no_sync()
