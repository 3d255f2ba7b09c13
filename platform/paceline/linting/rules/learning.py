"""Faults of the learning rate and of the decay for large batches; found in the config alone."""

from collections.abc import Iterator

from paceline.linting.finding import Fault
from paceline.linting.rules.norms import norm_names
from paceline.linting.subject import Subject

FEW = 2.0
"""Growths of the batch below this make no difference between the rules."""
LARGE = 8.0


def learning_rate_too_high(subject: Subject) -> Iterator[Fault]:
    """A learning rate, before it is scaled, with which the loss will most likely become NaN.

    Scaled to a very large batch it may be higher (Goyal et al. 2017, arXiv:1706.02677, went up to 25.6), and with
    clipped gradients, too (Merity et al. 2018, arXiv:1708.02182, trained with 30).
    """
    optimizer = subject.config.optimizer
    highest = optimizer.highest_lr
    if optimizer.lr > highest and subject.config.trainer.max_grad_norm is None:
        reason = f"a learning rate of {optimizer.lr:g} is more than {optimizer.describe()} stands without clipping"
        yield Fault("optimizer.lr", reason, f"write one of {highest:g} or less, or set trainer.max_grad_norm")


def linear_rule_with_adam(subject: Subject) -> Iterator[Fault]:
    """The rule of SGD for an optimizer whose steps do not shrink with the gradient's noise."""
    optimizer = subject.config.optimizer
    if optimizer.update_family == "adam" and optimizer.lr_scaling == "linear" and subject.growth >= FEW:
        reason = f"for {optimizer.describe()} the learning rate follows the root of the batch (arXiv:2205.10287)"
        yield Fault("optimizer.lr_scaling", reason, "write lr_scaling: sqrt")


def sqrt_rule_with_sgd(subject: Subject) -> Iterator[Fault]:
    """The rule of Adam for SGD."""
    optimizer = subject.config.optimizer
    if optimizer.update_family == "sgd" and optimizer.lr_scaling == "sqrt" and subject.growth >= FEW:
        reason = (
            f"for {optimizer.describe()} the learning rate follows the batch itself; the root loses accuracy "
            "(arXiv:1706.02677)"
        )
        yield Fault("optimizer.lr_scaling", reason, "write lr_scaling: linear, with a warmup")


def large_batch_without_warmup(subject: Subject) -> Iterator[Fault]:
    """A learning rate that was raised much, from the first step on."""
    schedule, scaling = subject.config.lr_scheduler, subject.config.optimizer.lr_scaling
    warms_up = schedule.warmup_epochs or schedule.warmup_steps or schedule.warmup_samples
    if scaling in ("linear", "sqrt") and subject.growth >= LARGE and not warms_up:
        reason = f"the batch is {subject.growth:g} times base_batch_size, and the raised learning rate has no warmup"
        yield Fault("lr_scheduler", reason, "write warmup_epochs: 5 (arXiv:1706.02677), or a part of a short training")


def large_batch_decays_norms(subject: Subject) -> Iterator[Fault]:
    """Decay and trust ratios on parameters of one dimension."""
    optimizer = subject.config.optimizer
    large = optimizer.scales_layers or subject.growth >= LARGE
    if large and optimizer.weight_decay and optimizer.weight_decay_exclude == "none" and norm_names(subject.task):
        reason = "the decay also pulls on biases and normalisation, which costs accuracy with large batches"
        yield Fault("optimizer.weight_decay_exclude", reason, "write weight_decay_exclude: norms_and_biases")
