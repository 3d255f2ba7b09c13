"""State of a run at a step boundary, and its form on disk."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline._compat.torch import COMPILED_PREFIX
from paceline.engine.checkpoint_files import START_FROM_SCRATCH
from paceline.engine.dist_context import DistContext
from paceline.engine.layout import WHOLE, Replicated
from paceline.engine.optimizer_state import load_optimizer, optimizer_tensors, optimizer_values, options_of_groups
from paceline.engine.precision import Precision
from paceline.errors import ConfigError, Problem
from paceline.optimizers._several import type_name
from paceline.tasks._task import Task

WRAPPER_PREFIXES = ("module.", COMPILED_PREFIX)


@dataclass
class Position:
    """Progress of training."""

    step: int = 0
    """Number of optimizer steps done."""
    epoch: int = 0
    """Number of epochs finished."""
    epoch_samples: int = 0
    """Number of samples consumed in the current epoch."""
    samples: int = 0
    """Number of samples consumed since the start."""

    def advance(self, samples: int, epoch_is_over: bool) -> None:
        """Count one optimizer step over `samples` samples."""
        self.step += 1
        self.samples += samples
        self.epoch_samples = 0 if epoch_is_over else self.epoch_samples + samples
        self.epoch += epoch_is_over


@dataclass
class TrainState:
    """Everything that a resumed run needs."""

    task: Task
    optimizer: Optimizer
    precision: Precision
    position: Position = field(default_factory=Position)
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest value of each metric."""
    is_stopped_early: bool = False
    """True once a callback has finished the run before the plan's end."""
    stop_reason: str = ""
    """Text on the callback that finished the run early, with the reason; empty if none did."""
    layout: Replicated = WHOLE
    """Layout of the tensors over the ranks. If it is spread, every rank must call the methods."""

    group_options: list[dict[str, Any]] = field(init=False)
    """Options of the optimizer's parameter groups as they were built. Later changes by the optimizer are state."""

    def __post_init__(self) -> None:
        self.group_options = options_of_groups(self.optimizer)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Parameters that this rank updates."""
        return trainable_parameters(self.task, self.layout)

    def is_finite(self, ranks: DistContext) -> bool:
        """Return True if all trained weights are finite, on all ranks. Waits for the device."""
        norms = torch.stack([self.layout.local(parameter.detach()).norm() for parameter in self.trainable])
        bad = float(not torch.isfinite(norms).all())
        return not (any(ranks.sum_numbers([bad])) if self.layout.is_spread else bad)

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """Return CPU copies of the model's weights and buffers."""
        return self.layout.collect(split_task_state(self.task.state_dict())[0])

    def weights_sha256(self) -> str:
        """Return `weights_sha256` of the model's weights and buffers; valid on rank 0."""
        model = split_task_state(self.task.state_dict())[0]
        return _sha256_of(self.layout.each_whole({strip_wrappers(name): tensor for name, tensor in model.items()}))

    def parts(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return all tensors as this rank holds them, by file (`model`, `task`, `optimizer`) and name."""
        model, task = split_task_state(self.task.state_dict())
        return {"model": model, "task": task, "optimizer": optimizer_tensors(self.optimizer, self.group_options)}

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return CPU copies of all tensors, by file and name."""
        return {name: self.layout.collect(part) for name, part in self.parts().items()}

    def values(self) -> dict[str, Any]:
        """Return all state that is not a tensor, as JSON values."""
        return {
            "optimizer_type": type_name(self.optimizer),
            "position": asdict(self.position),
            "metrics": dict(self.metrics),
            "is_stopped_early": self.is_stopped_early,
            "stop_reason": self.stop_reason,
            "precision": self.precision.state_dict(),
            "optimizer": self.layout.collect_values(optimizer_values(self.optimizer, self.group_options)),
        }

    def load(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], values: Mapping[str, Any]) -> None:
        """Resume from the results of `tensors` and `values`.

        Raises:
            ConfigError: they are those of another optimizer or another model.
        """
        saved, own = values["optimizer_type"], type_name(self.optimizer)
        if saved != own:
            reason = f"the checkpoint holds the state of {saved}, which {own} cannot use"
            raise ConfigError([Problem("resume", reason, "optimizer", hint=START_FROM_SCRATCH)])
        whole = _task_state(tensors)
        like = self.task.state_dict()
        has_same_dtypes = all(like[name].dtype == tensor.dtype for name, tensor in whole.items() if name in like)
        if differing := self._load_task(whole):
            reason = f"the checkpoint is another model's: they differ in {differing}"
            raise ConfigError([Problem("resume", reason, "model", hint=START_FROM_SCRATCH)])
        load_optimizer(self.optimizer, tensors["optimizer"], values["optimizer"], self.layout, has_same_dtypes)
        self.precision.load_state_dict(values["precision"])
        for name, value in values["position"].items():  # in place, since other objects refer to the position
            setattr(self.position, name, value)
        self.metrics = dict(values["metrics"])
        self.is_stopped_early, self.stop_reason = values["is_stopped_early"], values.get("stop_reason", "")

    def load_weights(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], values: Mapping[str, Any]) -> None:
        """Load weights, buffers and position from the results of `tensors` and `values`; the optimizer is not changed.

        Raises:
            ConfigError: they are those of another model.
        """
        if differing := self._load_task(_task_state(tensors)):
            reason = f"the weights of the checkpoint do not fit the model: they differ in {differing}"
            hint = "evaluate with the model, the task and the precision that the run was trained with"
            raise ConfigError([Problem("weights-mismatch", reason, "model", hint=hint)])
        for name, value in values["position"].items():
            setattr(self.position, name, value)

    def _load_task(self, whole: Mapping[str, torch.Tensor]) -> str:
        """Load weights and buffers, unless some differ in name or shape; return the first names that do, else ""."""
        own = self.task.state_dict()
        held = {name: like for name, like in own.items() if self.layout.holds(like)}
        differing = (held.keys() - whole.keys()) | (whole.keys() - own.keys())
        differing |= {name for name in whole.keys() & own.keys() if whole[name].shape != own[name].shape}
        if differing:
            return ", ".join(sorted(differing)[:3])
        placed = {name: self.layout.place(whole[name], like) for name, like in held.items()}
        self.task.load_state_dict(placed, strict=False)
        return ""


def _task_state(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a task's state dict from the files of a checkpoint."""
    return {**{f"model.{name}": each for name, each in tensors["model"].items()}, **tensors.get("task", {})}


def trainable_parameters(task: Task, layout: Replicated) -> list[nn.Parameter]:
    """Return the trainable parameters of a task that this rank holds."""
    return [parameter for parameter in task.parameters() if parameter.requires_grad and layout.holds(parameter)]


def parameter_names(task: Task) -> dict[int, str]:
    """Return the name of each parameter in the model, by `id`; for one of the task's own, its name in the task."""
    named = [(strip_wrappers(name), parameter) for name, parameter in task.named_parameters()]
    own = {name for name, _ in named if not name.startswith("model.")}
    plain = ((name, name.removeprefix("model."), parameter) for name, parameter in named)
    return {id(parameter): name if short in own else short for name, short, parameter in plain}


def split_task_state(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the model's entries without their `model.` prefix, and the task's own entries."""
    model = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    return model, {name: tensor for name, tensor in state.items() if not name.startswith("model.")}


def weights_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over name, dtype, shape and bytes of a state dict, sorted by name without wrapper prefixes."""
    return _sha256_of(sorted((strip_wrappers(name), tensor) for name, tensor in state.items()))


def _sha256_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = sha256()
    for name, tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{list(tensor.shape)}|".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def strip_wrappers(name: str) -> str:
    """Return a parameter's name without the prefixes that DDP and torch.compile add anywhere in it."""
    for prefix in WRAPPER_PREFIXES:
        while name.startswith(prefix):
            name = name[len(prefix) :]
    return name.replace(f".{COMPILED_PREFIX}", ".")
