"""Fully sharded data parallelism: every rank holds a slice of each weight, gradient and optimizer state.

PyTorch's FSDP2, `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv:2304.11277). A block's weights are put
together just before it computes, and let go of after. With hybrid shard the slices are made within groups of ranks, and
the groups average their gradients.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grad_norm_

from paceline.config.sections import ParallelConfig
from paceline.engine.activation_checkpointing import find_blocks
from paceline.engine.layout import Replicated, copied
from paceline.engine.ranks import Ranks
from paceline.tasks._task import Task


def apply_fsdp(task: Task, parallel: ParallelConfig, ranks: Ranks) -> nn.Module:
    """Cut the task's parameters up over the ranks, in place: by block where there are blocks, the rest together."""
    mesh = shard_mesh(parallel, ranks)
    for _, block in find_blocks(task.model):
        fully_shard(block, mesh=mesh)
    fully_shard(task, mesh=mesh)
    return task


def shard_mesh(parallel: ParallelConfig, ranks: Ranks) -> DeviceMesh:
    """The ranks in a row, or as [groups, ranks of a group] for hybrid shard. Neighbouring ranks are in one group."""
    size = parallel.shard_size or ranks.world_size
    if size == ranks.world_size:
        return init_device_mesh(ranks.device.type, (size,), mesh_dim_names=("shard",))
    shape = (ranks.world_size // size, size)
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("replicate", "shard"))


class Sharded(Replicated):
    """Every rank holds a slice of each parameter, as a DTensor."""

    is_spread = True
    is_sliced = True

    def local(self, tensor: Tensor) -> Tensor:
        """This rank's slice; shares its memory."""
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """CPU copies of whole tensors, one after the other, so that the device never holds more than one of them."""
        return {name: copied(_whole(tensor)) for name, tensor in tensors.items()}

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's slice of a whole tensor that every rank has read."""
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        # without a source rank nothing is sent: each rank cuts its slice out of its own copy
        return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by the norm over all slices."""
        return _whole(clip_grad_norm_(parameters, max_norm))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
