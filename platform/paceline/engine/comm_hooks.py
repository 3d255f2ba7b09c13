"""How a bucket of gradients is averaged over the ranks: `parallel.comm_hook`."""

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
"""Averages a bucket; what its future gives is DDP's result."""


class GradientObserver(Protocol):
    """Sees the parts of each step's gradient: one per rank, or one per micro-batch in a world of one."""

    def see_bucket(self, bucket: GradBucket) -> None:
        """A bucket of this rank's own gradients, before DDP averages it."""

    def end_micro_batch(self, is_last: bool) -> None:
        """The backward pass of a micro-batch is done; `is_last` of the step."""


def average(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """The plain mean, as DDP makes it without a hook."""
    return default_hooks.allreduce_hook(_WORLD, bucket)


def bf16(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """The mean of gradients rounded to bfloat16: 8 significant bits, float32's range."""
    return default_hooks.bf16_compress_hook(_WORLD, bucket)


def fp16(bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
    """The mean of gradients rounded to float16: 11 significant bits; infinite above 65,504, none below 6e-8."""
    return default_hooks.fp16_compress_hook(_WORLD, bucket)


_WORLD: dist.ProcessGroup = None  # type: ignore[assignment]  # torch's annotation leaves out that None is the default


def build_powersgd(
    parallel: ParallelConfig, parameters: list[nn.Parameter], ranks: DistContext, seed: int, warn: Callable[[str], None]
) -> PowerSGD | None:
    """PowerSGD over the trainable `parameters`, where a config asks for it and there are ranks to exchange with."""
    if parallel.comm_hook != "powersgd" or ranks.world_size == 1:
        return None
    return PowerSGD(parameters, parallel.powersgd_rank, parallel.powersgd_start_step, ranks, seed, warn)


def build_compression(parallel: ParallelConfig, powersgd: PowerSGD | None) -> BucketHook | None:
    """What averages the buckets in a config; None for DDP itself."""
    hooks: dict[str, BucketHook | None] = {"none": None, "bf16": bf16, "fp16": fp16, "powersgd": powersgd}
    return hooks[parallel.comm_hook]
