"""Communication hooks that average a bucket of gradients over the ranks: `parallel.comm_hook`."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from paceline.config.sections import ParallelConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.powersgd import PowerSGD

BucketHook = Callable[[GradBucket], "torch.futures.Future[torch.Tensor]"]
"""Hook that averages a bucket; the value of its future is DDP's result."""


class GradientObserver(Protocol):
    """Sees the parts of each step's gradient: one per rank, or one per micro-batch in a world of one."""

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients, before DDP averages it."""

    def end_micro_batch(self, is_last: bool) -> None:
        """Take in the end of a micro-batch's backward pass; `is_last` marks the last one of the step."""


def average(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """Return the plain mean, as DDP computes it without a hook."""
    return default_hooks.allreduce_hook(_WORLD, bucket)


def bf16(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """Return the mean of gradients rounded to bfloat16: 8 significant bits, float32's range."""
    return default_hooks.bf16_compress_hook(_WORLD, bucket)


def fp16(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """Return the mean of gradients rounded to float16: 11 significant bits; infinite above 65,504, 0 below 6e-8."""
    return default_hooks.fp16_compress_hook(_WORLD, bucket)


_WORLD: dist.ProcessGroup = None  # type: ignore[assignment]  # torch's annotation leaves out that None is the default


def build_powersgd(
    parallel: ParallelConfig, parameters: list[nn.Parameter], ranks: DistContext, seed: int, warn: Callable[[str], None]
) -> PowerSGD | None:
    """Build PowerSGD over the trainable `parameters`; None if the config does not select it or the world size is 1."""
    if parallel.comm_hook != "powersgd" or ranks.world_size == 1:
        return None
    return PowerSGD(parameters, parallel.powersgd_rank, parallel.powersgd_start_step, ranks, seed, warn)


def build_compression(parallel: ParallelConfig, powersgd: PowerSGD | None) -> BucketHook | None:
    """Return the hook that averages the buckets under a config; None if DDP averages them itself."""
    hooks: dict[str, BucketHook | None] = {"none": None, "bf16": bf16, "fp16": fp16, "powersgd": powersgd}
    return hooks[parallel.comm_hook]
