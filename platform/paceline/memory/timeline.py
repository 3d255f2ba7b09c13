"""Timeline of the storages of a training step: their allocation, their release, and the peak of their total size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Role = Literal["weights", "gradients", "optimizer", "activations", "workspace"]
ROLES: tuple[Role, ...] = ("weights", "gradients", "optimizer", "activations", "workspace")
CUDA_BLOCK = 512
"""CUDA's allocator rounds sizes up to multiples of this number of bytes."""


@dataclass(frozen=True)
class Timeline:
    """The storages of one optimizer step in order of allocation, and the sequence of allocations and releases."""

    sizes: Sequence[int]
    """Bytes of each storage."""
    roles: Sequence[Role]
    """Role of each storage."""
    moments: Sequence[int]
    """Events in order: `n` allocates storage n - 1, `-n` releases it."""

    def peak(self, rounded: bool = False) -> dict[Role, int]:
        """Return the bytes by role at the moment of the largest total.

        Args:
            rounded: round each storage up to the size that CUDA's allocator gives it.
        """
        sizes = np.asarray(self.sizes, dtype=np.int64)
        if rounded:
            sizes = -(-sizes // CUDA_BLOCK) * CUDA_BLOCK
        moments = np.asarray(self.moments, dtype=np.int64)
        storages = np.abs(moments) - 1
        changes = np.sign(moments) * sizes[storages]
        highest = int(np.argmax(np.cumsum(changes))) + 1
        roles = np.asarray([ROLES.index(role) for role in self.roles])[storages[:highest]]
        held = np.zeros(len(ROLES), dtype=np.int64)
        np.add.at(held, roles, changes[:highest])
        return dict(zip(ROLES, held.tolist(), strict=True))

    def is_like(self, other: "Timeline") -> bool:
        """Return True if the same storages are allocated and released in the same order, whatever their sizes."""
        return list(self.moments) == list(other.moments) and list(self.roles) == list(other.roles)


class Growing:
    """Interpolates the timeline at any micro batch size from two sizes: each storage grows linearly, or not at all."""

    def __init__(self, small: Timeline, at: int, large: Timeline, larger: int) -> None:
        """Args:
        at: micro batch size of `small`.
        large: a timeline that `is_like` `small`.
        larger: micro batch size of `large`.
        """
        self._small, self._at = small, at
        self._slope = (np.asarray(large.sizes) - np.asarray(small.sizes)) / (larger - at)

    def at(self, size: int) -> Timeline:
        """Return the timeline at a micro batch of `size` samples."""
        sizes = np.asarray(self._small.sizes) + self._slope * (size - self._at)
        return Timeline(np.rint(sizes).astype(np.int64).tolist(), self._small.roles, self._small.moments)
