"""The optimizer of a config, or those that a task makes itself, over its trainable parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.experiment import ExperimentConfig
from paceline.engine.layout import WHOLE, Replicated
from paceline.engine.state import parameter_names, trainable_parameters
from paceline.errors import UnusableCode
from paceline.optimizers._modes import begin_training
from paceline.optimizers._numbering import number_by_position
from paceline.optimizers._several import SeveralOptimizers, members_of
from paceline.optimizers._state import complete_state, is_fusable
from paceline.optimizers.base import OptimizerConfig
from paceline.optimizers.imported import require_usable
from paceline.tasks._task import Task


def build_optimizer(
    config: ExperimentConfig, task: Task, peak_lr: float, device: torch.device, layout: Replicated = WHOLE
) -> Optimizer:
    """Build the optimizer over the task's trainable parameters that this rank holds, ready to train.

    Raises:
        UnusableCode: the task's `configure_optimizers` returned something that cannot be trained with.
    """
    optimizer = new_optimizer(config, task, peak_lr, device, layout)
    complete_state(optimizer)
    begin_training(optimizer)
    return optimizer


def new_optimizer(
    config: ExperimentConfig, task: Task, peak_lr: float, device: torch.device, layout: Replicated = WHOLE
) -> Optimizer:
    """Return the optimizer as its class makes it. Most classes hold no state before the first step."""
    trainable = trainable_parameters(task, layout)
    names = parameter_names(task)
    section = OptimizerConfig.of(config.optimizer)
    section.require_matches(names.values())
    has_sparse_gradients = _has_sparse_gradients(task)

    def build(parameters: Iterable[nn.Parameter], lr_multiplier: float = 1.0) -> Optimizer:
        given = [parameter for parameter in parameters if parameter.requires_grad]
        _require_own(given, names)
        fusable = all(is_fusable(layout.local(each)) for each in given) and not has_sparse_gradients
        fusable = fusable and (section.fuses_slices or not layout.is_sliced)
        fused = section.wants_fused(device.type, fusable)
        named = {names[id(parameter)]: parameter for parameter in given}
        return section.build(named, peak_lr * lr_multiplier, fused, task.model)

    if task.automatic_optimization and not task.builds_optimizers:
        optimizer = build(trainable)
    else:
        optimizer = _of_task(task, task.configure_optimizers(build), trainable)
    for member in members_of(optimizer):
        number_by_position(member, trainable, layout.numbers(trainable))
    return optimizer


def first_lr(task: Task, optimizer: Optimizer, peak_lr: float) -> float:
    """Return the learning rate that the schedule multiplies: the config's, or that of the task's first group."""
    own = float(optimizer.param_groups[0]["lr"]) if task.builds_optimizers else 0.0
    return own or peak_lr


def optimizer_text(optimizer: Optimizer) -> str:
    """Return a text that lists the optimizers of `configure_optimizers` with their learning rates."""
    made = [f"{type(each).__name__}, lr {each.param_groups[0]['lr']:g}" for each in members_of(optimizer)]
    return f"{'; '.join(made)} (from configure_optimizers)"


def report_untrained(task: Task, optimizer: Optimizer, layout: Replicated, warn: Callable[[str], None]) -> None:
    """Warn of trainable parameters of this rank that user code has left out of its optimizers."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    own = ((name, each) for name, each in task.named_parameters() if each.requires_grad and layout.holds(each))
    missing = [name for name, each in own if id(each) not in held]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        warn(f"{len(missing)} parameters are in no optimizer and are not trained: {shown}")


def _of_task(task: Task, returned: Any, trainable: Sequence[nn.Parameter]) -> Optimizer:
    """Check the result of `configure_optimizers` and return it as one optimizer, also if there are several."""
    maker = f"{type(task).__name__}.configure_optimizers"
    if isinstance(returned, Mapping):
        members = {str(name): each for name, each in returned.items()}
    elif isinstance(returned, list | tuple):
        members = {str(index): each for index, each in enumerate(returned)}
    else:
        members = {"0": returned}
    if not members:
        raise UnusableCode(f"{maker} returned no optimizer. Return at least one", "not-an-optimizer")
    for each in members.values():
        require_usable(each, trainable, maker)
    _require_disjoint(members, maker)
    if not task.automatic_optimization:
        return SeveralOptimizers(members)
    if len(members) > 1:
        raise UnusableCode(
            f"{maker} returned {len(members)} optimizers, but automatic_optimization is True, which steps one. Set "
            "automatic_optimization = False and write training_step(batch, optimizers)",
            "several-optimizers",
            count=len(members),
        )
    only: Optimizer = next(iter(members.values()))
    return only


def _require_own(parameters: Sequence[nn.Parameter], names: Mapping[int, str]) -> None:
    if not parameters:
        raise UnusableCode("build() was given no trainable parameter: give it module.parameters()", "nothing-to-train")
    foreign = sum(id(parameter) not in names for parameter in parameters)
    if foreign:
        raise UnusableCode(
            f"build() was given {foreign} tensors that are not parameters of the task. Make their module an attribute "
            "of the model or the task",
            "foreign-parameters",
            count=foreign,
        )


def _require_disjoint(members: Mapping[str, Optimizer], maker: str) -> None:
    owners: dict[int, str] = {}
    for name, member in members.items():
        for parameter in (each for group in member.param_groups for each in group["params"]):
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise UnusableCode(
                    f"{maker}: the optimizers {other!r} and {name!r} hold the same parameter. Give each parameter to "
                    "one of them",
                    "shared-parameters",
                    optimizers=[other, name],
                )


def _has_sparse_gradients(task: Task) -> bool:
    embeddings = [module for module in task.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return any(embedding.sparse and embedding.weight.requires_grad for embedding in embeddings)
