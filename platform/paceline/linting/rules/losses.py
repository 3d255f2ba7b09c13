"""Faults between the model's output and the loss, and of what is done with the loss."""

from collections.abc import Iterator

from torch import Tensor

from paceline.config.lightning import HINT, has_other_task
from paceline.engine.batches import tensors_in
from paceline.linting.calls import Flow
from paceline.linting.finding import Fault
from paceline.linting.subject import Subject


def lightning_task(subject: Subject) -> Iterator[Fault]:
    """A LightningModule whose steps are not called."""
    if has_other_task(subject.config, type(subject.task.model)):
        task = subject.config.task.describe()
        yield Fault("task", f"{task} does not call the training_step of the LightningModule", HINT)


def _flows(subject: Subject, source: tuple[str, ...], into: str) -> Iterator[Flow]:
    seen = set()
    for flow in subject.trace.training.flows if subject.trace else ():
        if flow.source.name in source and flow.into.name == into and flow.source.place not in seen:
            seen.add(flow.source.place)
            yield flow


def softmax_before_cross_entropy(subject: Subject) -> Iterator[Fault]:
    """Cross-entropy, which takes logits, of probabilities."""
    for flow in _flows(subject, ("softmax", "sigmoid", "sigmoid_"), "cross_entropy"):
        reason = f"cross-entropy takes logits and gets the result of {flow.source.name}: the gradients are too small"
        yield Fault(flow.source.place, reason, f"leave out the {flow.source.name} in training", "error")
    for flow in _flows(subject, ("log_softmax",), "cross_entropy"):
        reason = "cross-entropy takes log_softmax itself: this one is computed for nothing"
        yield Fault(flow.source.place, reason, "leave out the log_softmax in training")


def sigmoid_before_bce_with_logits(subject: Subject) -> Iterator[Fault]:
    """The binary loss of logits, of probabilities."""
    for flow in _flows(subject, ("sigmoid", "sigmoid_", "softmax"), "binary_cross_entropy_with_logits"):
        reason = f"the loss takes logits and gets the result of {flow.source.name}: the gradients are too small"
        yield Fault(flow.source.place, reason, f"leave out the {flow.source.name} in training", "error")


def nll_of_probabilities(subject: Subject) -> Iterator[Fault]:
    """The loss of log-probabilities, of probabilities."""
    for flow in _flows(subject, ("softmax", "sigmoid"), "nll_loss"):
        reason = f"nll_loss takes log-probabilities and gets the result of {flow.source.name}: the loss is not the NLL"
        yield Fault(flow.source.place, reason, "take log_softmax, or cross_entropy of the logits", "error")


def double_softmax(subject: Subject) -> Iterator[Fault]:
    """Probabilities that are normalised a second time."""
    for flow in _flows(subject, ("softmax", "log_softmax", "sigmoid"), "softmax"):
        reason = f"softmax of the result of {flow.source.name}: it comes out nearly uniform"
        yield Fault(flow.into.place, reason, "leave out one of the two", "error")


def relu_before_cross_entropy(subject: Subject) -> Iterator[Fault]:
    """Logits that cannot be negative."""
    for flow in _flows(subject, ("relu", "relu_"), "cross_entropy"):
        reason = "the logits go through relu: where all are 0, no gradient passes, and no class can be made less likely"
        yield Fault(flow.source.place, reason, "leave out the relu behind the last layer", "error")


def targets_out_of_range(subject: Subject) -> Iterator[Fault]:
    """Targets that number classes which the model does not have."""
    found = subject.trace.training.class_numbers if subject.trace else []
    if not found or subject.batches is None:
        return
    batch = subject.whole_batch
    tensors = [*tensors_in(subject.batches.large if batch is None else batch)]
    for each in found:
        targets = tensors[each.position]
        counted = targets[targets != each.ignored]
        if counted.numel() and not 0 <= counted.min() <= counted.max() < each.classes:
            reason = (
                f"the targets go from {int(counted.min())} to {int(counted.max())}, and the model gives logits of "
                f"{each.classes} classes, numbered from 0: training ends with an error"
            )
            yield Fault(each.call.place, reason, "number the classes from 0, or give the model more outputs", "error")


def loss_is_a_mean(subject: Subject) -> Iterator[Fault]:
    """A `loss_sum` that has been divided by the number of samples already."""
    if subject.trace is None:
        return
    call = subject.trace.training.mean_losses.get(id(subject.trace.loss_sum))
    weight = subject.trace.weight
    if call is not None and (isinstance(weight, Tensor) or weight > 1):
        reason = "TaskOutput.loss_sum is a mean, which is divided by TaskOutput.weight again"
        yield Fault(call.place, reason, 'write reduction="sum"', "error")


def loss_without_gradient(subject: Subject) -> Iterator[Fault]:
    """A loss that nothing can be learned from."""
    if not subject.task.automatic_optimization:
        return  # the forward pass is the evaluation alone
    if subject.trace is not None and not subject.trace.loss_sum.requires_grad:
        reason = "TaskOutput.loss_sum depends on no parameter: it was detached, or went through numpy or argmax"
        yield Fault("task", reason, "compute it with torch alone, without detach and no_grad", "error")


def in_place_breaks_backward(subject: Subject) -> Iterator[Fault]:
    """Something is changed in place that backward needs as it was."""
    error = subject.trace.backward_error if subject.trace else ""
    if "modified by an inplace operation" in error:
        reason = "backward needs a result that was changed in place: " + error.partition(": [")[2].partition("]")[0]
        yield Fault("model", reason, "write inplace=False, x = x + y for x += y, or relu for relu_", "error")


def graphs_are_kept(subject: Subject) -> Iterator[Fault]:
    """Results that are collected with their graphs."""
    for attribute in subject.trace.grown if subject.trace else ():
        reason = "collects tensors with the graphs behind them: the memory of each step is never released"
        yield Fault(attribute, reason, "collect tensor.detach(), and empty it now and then", "error")
