"""Faults around normalisation layers."""

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn

from paceline.engine.order import DataOrder
from paceline.engine.redundant_bias import find_redundant_bias
from paceline.linting.finding import Fault
from paceline.linting.subject import BATCH_NORMS, Subject

FEW_SAMPLES = 8
"""Below so many samples, batch normalisation's error grows fast (Wu and He 2018, arXiv:1803.08494, figure 5)."""


def bias_before_norm(subject: Subject) -> Iterator[Fault]:
    """The bias of a convolution whose output goes into batch normalisation alone."""
    if subject.config.trainer.remove_redundant_bias:
        return
    pairs = find_redundant_bias(subject.task.model)
    if pairs:
        convolution, norm = pairs[0]
        more = _others(len(pairs) - 1)
        reason = f"its bias is subtracted again by {norm}, and costs time and memory{more}"
        yield Fault(f"model.{convolution}", reason, "write bias=False, or set trainer.remove_redundant_bias: true")


def _others(count: int) -> str:
    return f"; the same holds for {count} other layer{'s' if count > 1 else ''}" if count else ""


def linear_bias_before_norm(subject: Subject) -> Iterator[Fault]:
    """The same of a linear layer in a sequence."""
    for name, sequence in subject.modules(nn.Sequential):
        children = list(sequence.named_children())
        for (first, linear), (second, norm) in pairwise(children):
            if type(linear) is not nn.Linear or type(norm) is not nn.BatchNorm1d or linear.bias is None:
                continue
            if not linear.bias.requires_grad:
                continue
            # with three dimensions the norm's channels are not what the layer gives one bias each
            if subject.trace and len(subject.trace.training.shapes.get(f"{name}.{second}", ())) == 2:
                reason = f"its bias is subtracted again by {name}.{second}, and costs time and memory"
                yield Fault(f"{name}.{first}", reason, "write bias=False")


def batchnorm_on_single_samples(subject: Subject) -> Iterator[Fault]:
    """Batch normalisation that gets one value a channel, which it refuses in training."""
    fewest = _fewest_samples(subject)
    for name, norm in subject.modules(*BATCH_NORMS):
        shape = subject.trace.training.shapes.get(name) if subject.trace else None
        if fewest == 1 and norm.training and shape and math.prod(shape[2:]) == 1:
            whole = subject.micro_batch == 1
            reason = "gets a single sample" + ("" if whole else " in the last batch of an epoch")
            hint = f"{reason}, and batch normalisation needs two values a channel in training: it fails"
            fix = "raise data.micro_batch_size" if whole else "set data.drop_last: true, or change the batch size"
            yield Fault(name, hint, f"{fix}, or take nn.LayerNorm", "error")
            return


def _fewest_samples(subject: Subject) -> int | None:
    """Samples of the smallest micro batch of any rank."""
    sizes = subject.settled_sizes
    if sizes is None or sizes.micro_batch_size == 1 or subject.sizes is None:
        return subject.micro_batch
    order = DataOrder(
        samples=subject.sizes.train,
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        rank=sizes.world_size - 1,  # the one with the smallest share
        world_size=sizes.world_size,
        shuffle=False,
        drop_last=subject.config.data.drop_last,
    )
    last = order.steps_per_epoch - 1
    return min(len(each.ids) for each in order.step_micro_batches(0, last)) if last >= 0 else None


def batchnorm_on_small_batches(subject: Subject) -> Iterator[Fault]:
    """Batch normalisation whose statistics come from few samples."""
    micro = subject.micro_batch
    norms = [name for name, norm in subject.modules(*BATCH_NORMS) if norm.training]
    if norms and micro is not None and micro < FEW_SAMPLES:
        sync = ", convert to nn.SyncBatchNorm" if subject.workers > 1 else ""
        hint = f"raise data.micro_batch_size to {FEW_SAMPLES} or more{sync}, or take nn.GroupNorm"
        samples = "one sample" if micro == 1 else f"{micro} samples"
        reason = f"normalises by the statistics of {samples} (a micro batch), which are noisy"
        yield Fault(norms[0], reason + (f"; {len(norms)} layers do" if len(norms) > 1 else ""), hint)


def norm_names(task: nn.Module) -> list[str]:
    """Normalisation layers with weights."""
    kinds = (*BATCH_NORMS, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm, torch.nn.RMSNorm)
    return [name for name, each in task.named_modules() if isinstance(each, kinds) and each.weight is not None]
