"""Faults of parameters and buffers: not known to the module, not used, or in a format that cannot be trained."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from paceline.linting.calls import ATTRIBUTE
from paceline.linting.finding import Fault, Severity
from paceline.linting.subject import Subject

_SHOWN = 3


def not_registered(subject: Subject) -> Iterator[Fault]:
    """Modules and parameters in plain lists, tuples or mappings, and leaf tensors that are not parameters."""
    known = {id(parameter) for parameter in subject.task.parameters()}
    for _, module in subject.modules(nn.Module):
        for name, value in _own_attributes(module):
            hidden = [each for each in _parameters_in(value) if each.requires_grad and id(each) not in known]
            if hidden:
                what = "is" if isinstance(value, Tensor) else f"a {type(value).__name__} that holds"
                reason = f"{what} {_counted(len(hidden))} that no optimizer, checkpoint or device knows of"
                hint = "use nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.Parameter"
                yield Fault(f"{type(module).__name__}.{name}", reason, hint, "error")


def _counted(count: int) -> str:
    return "a parameter" if count == 1 else f"{count} parameters"


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    torchs_own = vars(nn.Module())
    yield from ((name, value) for name, value in vars(module).items() if name not in torchs_own)


def _parameters_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    if isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, Tensor):
        yield from [value] if value.is_leaf else []
    elif depth and isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _parameters_in(item, depth - 1)


def tensor_not_registered(subject: Subject) -> Iterator[Fault]:
    """Constants that stay in host memory when the model moves."""
    calls = subject.trace.training.from_host if subject.trace and subject.may_use_gpu else ()
    for attribute in dict.fromkeys(call.module for call in calls if call.name == ATTRIBUTE):
        reason = "is a tensor but neither parameter nor buffer: it stays in host memory when the model moves"
        name = attribute.rpartition(".")[2]
        yield Fault(attribute, reason, f'write self.register_buffer("{name}", ..., persistent=False)')


def made_in_forward(subject: Subject) -> Iterator[Fault]:
    """Layers and parameters that are made again in each forward pass."""
    calls = subject.trace.training.calls if subject.trace else ()
    for place, call in {each.place: each for each in calls if each.name == "register_parameter"}.items():
        reason = f"makes the parameter {call.detail} in each forward pass, with new values, which no optimizer knows"
        yield Fault(place, reason, "make it in __init__", "error")


def never_used(subject: Subject) -> Iterator[Fault]:
    """Trainable parameters that the loss does not depend on."""
    if subject.trace is None or not subject.trace.used or not subject.task.automatic_optimization:
        return  # with several optimizers the forward pass is the evaluation alone
    unused = [
        name
        for name, parameter in subject.task.named_parameters()
        if parameter.requires_grad and name not in subject.trace.used
    ]
    if not unused:
        return
    parallel = subject.config.parallel
    fails = subject.workers > 1 and parallel.strategy == "ddp" and not parallel.static_graph
    more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
    reason = f"the loss does not depend on {', '.join(unused[:_SHOWN])}{more}"
    severity: Severity = "error" if fails else "warning"
    what = "; DDP waits for their gradients and fails in the second step" if fails else ", which takes memory"
    hint = "remove them, or set requires_grad_(False)"
    yield Fault(unused[0], reason + what, hint, severity)


def weights_in_16_bit(subject: Subject) -> Iterator[Fault]:
    """Weights that are too coarse for small updates."""
    low = [
        (name, parameter.dtype)
        for name, parameter in subject.task.named_parameters()
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16)
    ]
    if low and subject.config.trainer.precision != "64-true":
        name, dtype = low[0]
        kind = str(dtype).removeprefix("torch.")
        reason = f"is {kind}, as are {len(low)} weights in all: updates below its rounding are lost"
        severity: Severity = "error" if dtype is torch.float16 else "warning"
        yield Fault(name, reason, "keep the weights in float32, and set trainer.precision: bf16-mixed", severity)
