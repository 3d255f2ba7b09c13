"""Layout of the training state over the ranks, and its collection into whole tensors for a checkpoint."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from paceline._compat.torch import set_group_timeout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Rows:
    """A CPU copy of a slice of a tensor along its first dimension, contiguous like the same rows of the whole."""

    values: Tensor
    first: int
    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    @property
    def row_bytes(self) -> int:
        """Size of each row in bytes."""
        return prod(self.shape[1:]) * self.values.element_size()

    @property
    def whole_bytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return prod(self.shape) * self.values.element_size()


class Replicated:
    """Every rank holds everything. `Sharded` (fsdp) and `Staged` (pipeline) are the other layouts."""

    is_spread = False
    """True if a rank holds only a part of the state, so that every rank must take part in `collect`."""
    is_sliced = False
    """True if each parameter is sliced over the ranks. Every forward pass is then a collective operation, so that all
    ranks need equally many passes."""

    def numbers(self, parameters: list[nn.Parameter]) -> list[int]:
        """Return the index of each of this rank's trainable parameters among those of the whole task."""
        return list(range(len(parameters)))

    def holds(self, tensor: Tensor) -> bool:
        """Return True if this rank works with a parameter or buffer of the task."""
        return True

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of one of its parameters or gradients; shares memory with it."""
        return tensor

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return CPU copies of whole tensors, collected from the parts of all ranks; complete on rank 0."""
        return {name: copied(tensor) for name, tensor in tensors.items()}

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield name and whole tensor, sorted by name; complete on rank 0. Every rank must exhaust it."""
        yield from sorted(self.collect(tensors).items())

    def collect_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Rows]:
        """Return CPU copies of the rows that this rank saves, where the layout is sliced.

        The rows of all ranks together are the whole tensors; rank 0 has every name.
        """
        raise NotImplementedError

    def collect_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all ranks that are not tensors, by name; complete on rank 0."""
        return dict(values)

    def collect_nested(self, values: Any) -> Any:
        """Return the nested JSON values of a component; complete on rank 0."""
        return values

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor, in the form of `like`."""
        return whole

    def reshard(self, task: nn.Module) -> None:
        """Drop whole weights that a forward pass has gathered and kept, so that the next one gathers them again."""

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients, in place, such that their norm over the whole model is at most `max_norm`.

        Returns:
            The norm before.
        """
        return clip_grad_norm_(parameters, max_norm)


WHOLE = Replicated()
"""The layout of one process, and of `ddp`."""


def copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return copy.copy_(tensor.detach())


def set_timeouts(mesh: "DeviceMesh", seconds: float) -> None:
    """Let operations in the groups of a mesh wait as long as those in the default group do."""
    for group in mesh.get_all_groups():
        set_group_timeout(timedelta(seconds=seconds), group)
