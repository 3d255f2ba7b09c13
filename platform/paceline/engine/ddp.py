"""DistributedDataParallel: average gradients over the ranks, and hook into their exchange."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name
from torch.nn.parallel import DistributedDataParallel

from paceline._compat.torch import BufferSyncHook, compiler_import_deferred, register_dataclass
from paceline.config.sections import ParallelConfig
from paceline.engine.comm_hooks import BucketHook, GradientObserver, average
from paceline.engine.dist_context import DistContext
from paceline.engine.monitoring.own_time import OwnTime
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

AS_IT_IS = nullcontext()
# with `static_graph`, DDP finds the loss in what forward returns by this, and without it exchanges nothing at all
register_dataclass(TaskOutput)


def apply_ddp(task: Task, parallel: ParallelConfig, ranks: DistContext, own_time: OwnTime) -> nn.Module:
    """Wrap the task so that gradients are averaged over the ranks during backward. A world of one needs no wrapper.

    Args:
        own_time: clock that is stopped while forward waits for rank 0's buffers.
    """
    if ranks.world_size == 1:
        return task
    options: dict[str, Any] = {} if parallel.bucket_cap_mb is None else {"bucket_cap_mb": parallel.bucket_cap_mb}
    with compiler_import_deferred():
        replica = _Replica(
            task,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            gradient_as_bucket_view=parallel.gradient_as_bucket_view,
            static_graph=parallel.static_graph,
            find_unused_parameters=parallel.find_unused_parameters,
            **options,
        )
    replica.own_time = own_time
    return replica


class _Replica(BufferSyncHook, DistributedDataParallel):
    """DDP whose forward pass begins by copying rank 0's buffers, such as BatchNorm's statistics, to all ranks."""

    own_time: OwnTime

    def around_buffer_sync(self, sync: Callable[[], None]) -> None:
        """Synchronise the buffers without counting the wait as this rank's own time."""
        was_busy = self.own_time.stop()
        sync()
        if was_busy:
            self.own_time.start()


def communicates(model: nn.Module) -> bool:
    """Return True if the model has a torch module whose forward pass in training is a collective operation."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def needs_lockstep(model: nn.Module) -> bool:
    """Return True if all ranks must take equally many micro-batches, the missing ones as padding that does not count.

    A custom module may communicate in its forward pass without a sign of it. Padding costs only time, except where
    batch normalisation would take it into its statistics.
    """
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return communicates(model) or not any(isinstance(module, plain) for module in model.modules())


def gradient_exchange(model: nn.Module) -> Callable[[bool], AbstractContextManager[None]] | None:
    """Return a function that makes the context for a micro-batch's forward *and* backward.

    Its argument is True if the gradients are exchanged after that micro-batch. None for a model that exchanges nothing.
    """
    if isinstance(model, DistributedDataParallel):
        return lambda now: AS_IT_IS if now else model.no_sync()
    exchange = getattr(model, "set_requires_gradient_sync", None)  # FSDP's, whose class is slow to import
    if exchange is None:
        return None

    def of_slices(now: bool) -> AbstractContextManager[None]:
        exchange(now)
        return AS_IT_IS

    return of_slices


def hook_into_exchange(model: nn.Module, compress: BucketHook | None, observer: GradientObserver | None) -> None:
    """Pass each bucket of local gradients to `observer`, then average it by `compress`. No-op without DDP.

    Args:
        compress: hook that averages the buckets. None: DDP averages them itself.
    """
    if not isinstance(model, DistributedDataParallel) or (compress is None and observer is None):
        return
    exchange = compress or average

    # torch compares the annotations by identity
    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if observer is not None:
            observer.see_bucket(bucket)
        return exchange(bucket)

    model.register_comm_hook(None, hook)
