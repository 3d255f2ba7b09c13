"""Application of all techniques to a model. Their order matters: keep it readable."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.config.sections import TrainerConfig
from paceline.engine.activation_checkpointing import apply_activation_checkpointing
from paceline.engine.compilation import apply_compilation, apply_compiler_settings
from paceline.engine.freezing import freeze
from paceline.engine.host_allocator import keep_freed_memory
from paceline.engine.precision import Precision
from paceline.engine.redundant_bias import remove_redundant_bias
from paceline.tasks._task import Task

if TYPE_CHECKING:
    from paceline.engine.strategy import Strategy

MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def apply_process_settings(trainer: TrainerConfig, device: torch.device) -> None:
    """Apply the settings of the whole process. Call it before any computation: cuDNN remembers its first choice."""
    if device.type == "cpu":
        keep_freed_memory()
    apply_flags(trainer)
    apply_compiler_settings(trainer)


def apply_flags(trainer: TrainerConfig) -> None:
    """Apply the process settings that may differ between trainings that take turns in one process."""
    torch.set_float32_matmul_precision(trainer.float32_matmul_precision)
    torch.backends.cudnn.allow_tf32 = trainer.cudnn_allow_tf32
    torch.backends.cudnn.benchmark = trainer.cudnn_benchmark
    if trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses without it
    if trainer.deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(trainer.deterministic)


def prepare(
    task: Task,
    trainer: TrainerConfig,
    precision: Precision,
    strategy: "Strategy",
    warn: Callable[[str], None] = lambda message: None,
) -> nn.Module:
    """Apply every configured technique to `task`, in place, and return the module that the training step calls.

    Techniques that could not be applied are reported to `warn`.
    """
    # 1. the model's own layers, while tracing sees only them
    if trainer.remove_redundant_bias:
        _remove_redundant_bias(task.model, warn)
    freeze(task.model, trainer.freeze)
    # 2. device, number format and layout, since all later techniques read the parameters
    device = torch.device("cpu") if strategy.moves_to_device else strategy.ranks.device
    memory_format = "contiguous" if strategy.layout.is_sliced else trainer.memory_format
    apply_format(task, precision.parameter_dtype, memory_format, device)
    # 3. checkpoints around blocks, inside the wrappers of the whole model
    apply_activation_checkpointing(
        task.model, trainer.activation_checkpointing, trainer.activation_checkpointing_blocks
    )
    # 4. the compiler, which has to see the checkpoints
    apply_compilation(task, trainer, strategy.ranks.device)
    # 5. the distribution over the ranks outermost: it has to see every parameter's final form
    return strategy.distribute(task, precision)


def _remove_redundant_bias(model: nn.Module, warn: Callable[[str], None]) -> None:
    removal = remove_redundant_bias(model)
    if removal.warning:
        warn(removal.warning)


def apply_format(task: Task, dtype: torch.dtype, memory_format: str, device: torch.device) -> None:
    """Move the task to the device, and set the memory format of its 4-d weights; cast it to float64 if asked for."""
    if dtype is torch.float64:
        task.double()
    task.to(device=device, memory_format=MEMORY_FORMATS[memory_format])  # type: ignore[call-overload]
