"""torch.compile (Ansel et al. 2024, doi:10.1145/3620665.3640366): in place, and undone where it fails.

What the compiler reads of the whole process is set for each trainer, so that none inherits another's.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline._compat.torch import (
    COMPILER_LOGGER,
    compile_in_place,
    defer_compiler_import,
    import_compiler,
    is_compiler_imported,
    joint_graph_pass,
    reset_recompile_limit,
    set_activation_memory_budget,
    set_compile_fallback,
    set_joint_graph_pass,
    undo_compile,
    wrap_compiled_call,
)
from paceline.config.sections import TrainerConfig
from paceline.engine.blocks import find_blocks
from paceline.errors import ConfigError, Problem
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

BACKEND = "inductor"
"""torch.compile's backend. Tests use a faster one."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""The modes that record CUDA graphs, whose results are overwritten when the graph runs again."""
VARIANTS = 8
"""Versions of a compiled module: in training or not, for a whole batch or a short one, and some room."""


def apply_compiler_settings(trainer: TrainerConfig) -> None:
    """Set what torch's compiler reads of the whole process, and forget what was compiled before.

    If it were not forgotten, a model of the same form would run what another's memory budget had made.
    """
    is_on = trainer.compile != "none"
    if is_on or trainer.activation_checkpointing != "none":
        import_compiler()  # torch would in the first step
    elif not is_compiler_imported():
        defer_compiler_import()
        return  # nothing was ever set
    torch.compiler.reset()
    reset_recompile_limit()
    # what fails after the trial, such as another batch size, is to cost a warning and not the run
    set_compile_fallback(is_on)
    has_budget = trainer.activation_checkpointing == "budget"
    _set_memory_budget(trainer.activation_memory_budget if has_budget else 1.0)
    _stop_reporting()


def _set_memory_budget(share: float) -> None:
    set_activation_memory_budget(share)
    if share == 1 and "paceline.engine.memory_budget" not in sys.modules:
        return  # the same: inductor takes a second to import
    from paceline.engine.memory_budget import LEAST, KeepRandom

    set_activation_memory_budget(max(share, LEAST))
    if share < 1:
        set_joint_graph_pass(KeepRandom())
    elif isinstance(joint_graph_pass(), KeepRandom):
        set_joint_graph_pass(None)


def apply_compilation(task: Task, trainer: TrainerConfig, device: torch.device) -> None:
    """Have the task, or each of its model's blocks, compiled when it is called. Names in the state dict stay.

    The scope `model` is the task, model and loss together, so that the loss is fused as well.

    Raises:
        ConfigError: the scope is blocks, and the model has none.
    """
    if trainer.compile == "none":
        return
    parts = [task] if trainer.compile_scope == "model" else [block for _, block in find_blocks(task.model)]
    if not parts:
        reason = f"{type(task.model).__name__} has no blocks to compile (children of nn.Sequential or nn.ModuleList)"
        raise ConfigError([Problem("no-blocks", reason, "trainer.compile_scope", hint="write compile_scope: model")])
    for part in parts:
        # blocks of one form share what is compiled for it, and all blocks share one limit
        compile_in_place(part, backend=BACKEND, mode=trainer.compile, recompile_limit=VARIANTS * len(parts))
    if trainer.compile in CUDA_GRAPHS and device.type == "cuda":
        wrap_compiled_call(task, partial(owning, task))


def undo_compilation(task: Task) -> None:
    """Have everything computed by the modules' own code again."""
    for module in task.modules():
        undo_compile(module)


def owning(task: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, such that neither its results nor the gradients are lost when its CUDA graphs run again.

    Results are copied out of the graphs' memory, and so are gradients that are still there when the next micro batch
    begins: autograd takes the first gradient of a parameter as it is, without a copy. All graphs of a call belong to
    one iteration, which is marked: otherwise a block's graph in evaluation would free the result of the one before.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        for parameter in task.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        output = call(*args, **kwargs)
        return _copied(output) if isinstance(output, TaskOutput) else output

    return run


def _copied(output: TaskOutput) -> TaskOutput:
    return replace(
        output,
        loss_sum=_cloned(output.loss_sum),
        weight=_cloned(output.weight),
        metrics={name: _cloned(value) for name, value in output.metrics.items()},
        predictions=_cloned(output.predictions),
        targets=_cloned(output.targets),
    )


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class _WarningHandler(logging.Handler):
    """Hands the compiler's warnings on, once: that it gave up on a new shape, or on ever more versions of a module."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._reasons: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is None and "recompile_limit" not in text:
            return
        reason = " ".join(text.split()) if error is None else reason_of(error)
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._tell(f"some of the model runs without compilation: {reason}")


def report_compiler_warnings(tell: Callable[[str], None]) -> None:
    """Call `tell` with each warning of the compiler that some code runs without it, until the next trainer is built."""
    _stop_reporting()
    logging.getLogger(COMPILER_LOGGER).addHandler(_WarningHandler(tell))


def _stop_reporting() -> None:
    logger = logging.getLogger(COMPILER_LOGGER)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _WarningHandler)]:
        logger.removeHandler(handler)


def reason_of(error: BaseException) -> str:
    """Type and first line of an error, or of the one that it only passes on: the compiler's are pages long."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, BaseException):
        return reason_of(inner)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
