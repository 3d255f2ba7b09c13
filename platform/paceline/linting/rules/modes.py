"""Faults of dropout, and of training and evaluation mode."""

from collections.abc import Iterator

from torch import nn

from paceline.linting.finding import Fault, Severity
from paceline.linting.subject import BATCH_NORMS, Subject

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
NEARLY_ALL = 0.9
"""Dropout of more is likelier meant as the share that is kept, as other frameworks have counted it; of so much it has
been used (Simonyan and Zisserman 2014, arXiv:1406.2199)."""


def eval_is_undone(subject: Subject) -> Iterator[Fault]:
    """Layers that the user put in evaluation mode while the model was built."""
    woken = [
        name for name, each in subject.modules(*BATCH_NORMS, *_DROPOUTS) if name in subject.asleep and each.training
    ]
    if woken:
        reason = f"is in evaluation mode when it is built, as are {len(woken)} layers in all; training turns that off"
        yield Fault(woken[0], reason, "override train(self, mode=True) of your model, and call eval() on them there")


def training_mode_in_evaluation(subject: Subject) -> Iterator[Fault]:
    """Layers that are in training mode while the task is evaluated."""
    kinds = (*BATCH_NORMS, *_DROPOUTS)
    awake = set(subject.trace.trained_in_evaluation) if subject.trace else set()
    names = [name for name, _ in subject.modules(*kinds) if name in awake]
    if names:
        reason = "is in training mode in evaluation: train() is called in the forward pass, or eval() does not reach it"
        yield Fault(names[0], reason, "leave train() out of the forward pass", "error")


def dropout_in_evaluation(subject: Subject) -> Iterator[Fault]:
    """Dropout that is on in evaluation."""
    calls = subject.trace.evaluation.dropouts if subject.trace else ()
    for place, call in {each.place: each for each in calls}.items():
        argument = "dropout_p=self.p if self.training else 0.0"
        hint = argument if call.name == "scaled_dot_product_attention" else "training=self.training"
        yield Fault(place, f"{call.name} also drops in evaluation", f"write {hint}", "error")


def dropout_of_nearly_all(subject: Subject) -> Iterator[Fault]:
    """Dropout whose `p` lets little or nothing through."""
    found = [(name, each.p) for name, each in subject.modules(*_DROPOUTS) if each.p > NEARLY_ALL]
    if found:
        name, share = max(found, key=lambda each: each[1])
        what = "drops everything in training" if share == 1 else f"drops {100 * share:.6g} % of the values in training"
        hint = "write p=0 to drop nothing" if share == 1 else f"write p={1 - share:.6g} to keep {100 * share:.6g} %"
        severity: Severity = "error" if share == 1 else "warning"
        yield Fault(name, f"{what}: p is the share that is dropped, not the one that is kept", hint, severity)
