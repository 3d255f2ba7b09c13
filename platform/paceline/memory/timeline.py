"""When the storages of a training step come and go, and what they add up to at their highest point."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Role = Literal["weights", "gradients", "optimizer", "activations", "workspace"]
ROLES: tuple[Role, ...] = ("weights", "gradients", "optimizer", "activations", "workspace")
CUDA_BLOCK = 512
"""CUDA's allocator gives memory in multiples of so many bytes."""


@dataclass(frozen=True)
class Timeline:
    """The storages of one optimizer step in the order in which they appear, and the moments when they come and go."""

    sizes: Sequence[int]
    """Bytes of each storage."""
    roles: Sequence[Role]
    """What each storage is for."""
    moments: Sequence[int]
    """`n` when storage n - 1 comes, `-n` when it goes."""

    def peak(self, rounded: bool = False) -> dict[Role, int]:
        """Bytes by role at the moment when all of them together are the most.

        Args:
            rounded: up to what CUDA's allocator gives for each storage.
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
        """Return True if the same storages come and go in the same order, whatever their sizes."""
        return list(self.moments) == list(other.moments) and list(self.roles) == list(other.roles)


class Growing:
    """The timeline at any micro batch size, from those at two: every storage grows in proportion, or not at all."""

    def __init__(self, small: Timeline, at: int, large: Timeline, larger: int) -> None:
        """Args:
        at: the micro batch size of `small`; `larger` that of `large`, which `is_like` it.
        """
        self._small, self._at = small, at
        self._slope = (np.asarray(large.sizes) - np.asarray(small.sizes)) / (larger - at)

    def at(self, size: int) -> Timeline:
        """The timeline at a micro batch of `size` samples."""
        sizes = np.asarray(self._small.sizes) + self._slope * (size - self._at)
        return Timeline(np.rint(sizes).astype(np.int64).tolist(), self._small.roles, self._small.moments)
