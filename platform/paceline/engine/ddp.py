"""DistributedDataParallel: the averaging of gradients over the ranks, when it happens and what passes through it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from paceline.config.sections import ParallelConfig
from paceline.engine.adascale import AdaScale
from paceline.engine.comm_hooks import BucketHook, average
from paceline.engine.ranks import Ranks
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

AS_IT_IS = nullcontext()
# with `static_graph`, DDP finds the loss in what forward returns by this, and without it exchanges nothing at all
_pytree.register_dataclass(TaskOutput)


def apply_ddp(task: Task, parallel: ParallelConfig, ranks: Ranks) -> nn.Module:
    """Average gradients over the ranks as they appear in backward. A world of one needs no wrapper."""
    if ranks.world_size == 1:
        return task
    options: dict[str, Any] = {} if parallel.bucket_cap_mb is None else {"bucket_cap_mb": parallel.bucket_cap_mb}
    return DistributedDataParallel(
        task,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=parallel.gradient_as_bucket_view,
        static_graph=parallel.static_graph,
        **options,
    )


def gradient_exchange(model: nn.Module, now: bool) -> AbstractContextManager[None]:
    """The context of a micro batch's forward *and* backward: gradients are exchanged only when `now` is true."""
    if isinstance(model, DistributedDataParallel):
        return AS_IT_IS if now else model.no_sync()
    exchange = getattr(model, "set_requires_gradient_sync", None)  # FSDP's, whose class is slow to import
    if exchange is not None:
        exchange(now)
    return AS_IT_IS


def hook_into_exchange(model: nn.Module, compress: BucketHook | None, adascale: AdaScale | None) -> None:
    """Let each bucket of local gradients be seen by AdaScale, then averaged by `compress`. A world of one has none.

    Args:
        compress: None leaves the average to DDP itself.
    """
    if not isinstance(model, DistributedDataParallel) or (compress is None and adascale is None):
        return
    exchange = compress or average

    # torch compares the annotations by identity
    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if adascale is not None:
            adascale.see_bucket(bucket)
        return exchange(bucket)

    model.register_comm_hook(None, hook)
