"""Fully sharded data parallelism: every rank holds a slice of each weight, gradient and optimizer state.

PyTorch's FSDP2, `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv:2304.11277). A block's weights are put
together just before it computes, and freed afterwards. With hybrid shard the slices are made within groups of ranks,
and the groups average their gradients.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.utils import clip_grad_norm_

from paceline._compat.torch import import_compiler
from paceline.config.sections import ParallelConfig
from paceline.engine.blocks import find_blocks
from paceline.engine.dist_context import DistContext
from paceline.engine.layout import Replicated, Rows, copied, set_timeouts
from paceline.errors import UnusableCode
from paceline.tasks._task import Task


def apply_fsdp(
    task: Task, parallel: ParallelConfig, ranks: DistContext, gather_dtype: torch.dtype | None = None
) -> nn.Module:
    """Cut the task's parameters up over the ranks, in place: by block where there are blocks, the rest together.

    Args:
        gather_dtype: number format in which weights are gathered; None: as they are stored.
    """
    _require_dimensions(task)
    import_compiler()  # torch would in the first step
    mesh = shard_mesh(parallel, ranks)
    set_timeouts(mesh, parallel.timeout_seconds)
    of_blocks, of_task = MixedPrecisionPolicy(), MixedPrecisionPolicy()
    if gather_dtype is not None:
        of_blocks = MixedPrecisionPolicy(gather_dtype, torch.float32)
        # a batch may hold targets, which keep their precision
        of_task = MixedPrecisionPolicy(gather_dtype, torch.float32, cast_forward_inputs=False)
    for block in _blocks_of_their_own(task):
        fully_shard(block, mesh=mesh, mp_policy=of_blocks)
    fully_shard(task, mesh=mesh, mp_policy=of_task)
    return task


def _require_dimensions(task: Task) -> None:
    for name, parameter in task.named_parameters():
        if not parameter.ndim:
            raise UnusableCode(
                f"parallel.strategy fsdp: {name} is a single number, which cannot be cut up: give it the shape [1]",
                "scalar-parameter",
                parameter=name,
            )


def _blocks_of_their_own(task: Task) -> list[nn.Module]:
    """The blocks that share no parameter with the rest of the task; what is shared is put together with the rest."""
    owners = Counter(id(each) for _, each in task.named_parameters(remove_duplicate=False))
    blocks = [block for _, block in find_blocks(task.model)]
    inside = [Counter(id(each) for _, each in block.named_parameters(remove_duplicate=False)) for block in blocks]
    return [block for block, own in zip(blocks, inside, strict=True) if all(owners[key] == own[key] for key in own)]


def shard_mesh(parallel: ParallelConfig, ranks: DistContext) -> DeviceMesh:
    """The ranks in a row, or as [groups, ranks of a group] for hybrid shard. Neighbouring ranks are in one group."""
    size = parallel.shard_size or ranks.world_size
    if size == ranks.world_size:
        return init_device_mesh(ranks.device.type, (size,), mesh_dim_names=("shard",))
    shape = (ranks.world_size // size, size)
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("replicate", "shard"))


class Sharded(Replicated):
    """Every rank holds a slice of each parameter, as a DTensor.

    Args:
        is_first: whether this is rank 0, the one that needs what is collected.
    """

    is_spread = True
    is_sliced = True

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first

    def local(self, tensor: Tensor) -> Tensor:
        """This rank's slice; shares its memory."""
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """CPU copies on rank 0, one after the other, so that no device ever holds more than one whole tensor."""
        whole = ((name, _whole(tensor)) for name, tensor in tensors.items())
        return {name: copied(tensor) for name, tensor in whole if self._is_first}

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Name and whole tensor on rank 0, sorted by name; one after the other, since all may not fit into memory."""
        for name in sorted(tensors):
            yield from self.collect({name: tensors[name]}).items()

    def collect_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Rows]:
        """CPU copies of this rank's slices. With hybrid shard, the first group saves; what is not sliced, rank 0."""
        rows = {}
        for name, tensor in tensors.items():
            own = _own_rows(tensor)
            if isinstance(tensor, DTensor) and own is not None:
                if _is_first_copy(tensor):
                    rows[name] = Rows(copied(tensor.to_local()), own.start, tuple(tensor.shape))
                continue
            whole = _whole(tensor)
            if self._is_first:
                rows[name] = Rows(copied(whole), 0, tuple(whole.shape))
        return rows

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's slice of a whole tensor that every rank has read."""
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        rows = _own_rows(like)
        if rows is None:
            # without a source rank nothing is sent: each rank cuts its slice out of its own copy
            return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
        own = whole[rows]  # the file is mapped into memory: the other rows are never read
        local = torch.empty_like(own, device=like.device).copy_(own)
        return DTensor.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def reshard(self, task: nn.Module) -> None:
        """Drop the weights that the outermost module keeps after a forward pass without backward."""
        for module in task.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by the norm over all slices."""
        return _whole(clip_grad_norm_(parameters, max_norm))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _own_rows(tensor: Tensor) -> slice | None:
    """This rank's rows of a tensor; None if it is not cut along its rows alone.

    All ranks have the same number of rows, but for the last ones, which have fewer or none.
    """
    if not isinstance(tensor, DTensor):
        return None
    cut = [(dim, each) for dim, each in enumerate(tensor.placements) if not each.is_replicate()]
    if len(cut) != 1 or type(cut[0][1]) is not Shard or cut[0][1].dim != 0:
        return None
    dim, rows = cut[0][0], tensor.shape[0]
    most = -(-rows // tensor.device_mesh.size(dim))
    first = min(tensor.device_mesh.get_local_rank(dim) * most, rows)
    return slice(first, min(first + most, rows))


def _is_first_copy(tensor: DTensor) -> bool:
    """Return True unless another rank before this one holds the same rows."""
    mesh = tensor.device_mesh
    return not any(mesh.get_local_rank(dim) for dim, each in enumerate(tensor.placements) if each.is_replicate())
