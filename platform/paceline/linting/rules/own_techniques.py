"""Techniques that the user's code applies by itself, beside those that Paceline applies."""

from collections.abc import Iterator

import torch
from torch import nn

from paceline.linting.calls import LintedCall
from paceline.linting.finding import Fault
from paceline.linting.subject import Subject


def _calls(subject: Subject, *names: str) -> list[LintedCall]:
    calls = subject.trace.training.calls if subject.trace else ()
    return list({call.place: call for call in calls if call.name in names}.values())


def backward_in_forward(subject: Subject) -> Iterator[Fault]:
    """A backward pass of the task's own."""
    for call in _calls(subject, "backward"):
        reason = "calls backward in the forward pass; training does so itself, and the gradients count twice"
        yield Fault(call.place, reason, "leave it out, and return the loss", "error")


def graph_is_retained(subject: Subject) -> Iterator[Fault]:
    """A graph that is kept for a second backward pass."""
    for call in _calls(subject, "backward", "grad"):
        if call.detail == "kept":
            reason = "retain_graph=True keeps all activations after they have been used"
            yield Fault(call.place, reason, "leave it out, or write create_graph=True for a gradient of a gradient")


def own_autocast(subject: Subject) -> Iterator[Fault]:
    """Autocast in the model, which is a field of the config."""
    precision = subject.config.trainer.precision
    for call in _calls(subject, "autocast"):
        if call.detail in ("off", "float32"):
            continue
        if call.detail == "float16" and precision != "16-mixed":
            reason = f"computes in float16 without loss scaling, while trainer.precision is {precision}"
            yield Fault(call.place, reason, "leave it out, and set trainer.precision", "error")
        else:
            reason = f"autocast to {call.detail} overrules trainer.precision, which is {precision}"
            yield Fault(call.place, reason, "leave it out, and set trainer.precision: bf16-mixed or 16-mixed")


def own_grad_scaler(subject: Subject) -> Iterator[Fault]:
    """A gradient scaler of the task's own."""
    hint = "leave it out, and set trainer.precision: 16-mixed (bf16-mixed needs no scaler)"
    reason = "has a GradScaler of its own: training takes its steps without it, so that nothing is unscaled"
    for _, module in subject.modules(nn.Module):
        for name, value in vars(module).items():
            if isinstance(value, torch.amp.GradScaler):
                yield Fault(f"{type(module).__name__}.{name}", reason, hint, "error")
    for call in _calls(subject, "GradScaler"):
        yield Fault(call.place, reason, hint, "error")


def parallel_wrapper(subject: Subject) -> Iterator[Fault]:
    """A model that is wrapped for several devices already."""
    kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    for name, module in subject.modules(*kinds):
        reason = f"is a {type(module).__name__}, while the workers average their gradients themselves"
        yield Fault(name, reason, "return the bare model, and set parallel.strategy", "error")
