"""Tracker of every storage that operations allocate, and of its release."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from paceline._compat.torch import TorchDispatchMode, tree_leaves
from paceline.memory.kernels import Kernels
from paceline.memory.timeline import Role, Timeline

SMALL = 0.0002
"""Share of the held memory below which an operation's result is too small for its kernel to be measured."""


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages of all results while it is active, and those of earlier tensors that are passed to `add`.

    A storage made with gradients on is an activation (in checkpointed blocks also during backward). Any other one is
    workspace, unless `add` sets another role.
    """

    def __init__(self, kernels: Kernels | None = None) -> None:
        """Args:
        kernels: measures the scratch memory of each operation that is not too small to matter. None leaves it out.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels
        self._live = 0
        self._passing: list[tuple[int, str]] = []
        """Numbers of the storages that exist only while a kernel runs, and the kernel's mark."""
        self._sizes: list[int] = []
        self._roles: list[Role] = []
        self._moments: list[int] = []
        self._known: dict[int, tuple[int, Any]] = {}
        """Number of each live storage, and the weak reference that reports its release, by the `id` of the storage."""

    def add(self, tensors: Iterable[Any], role: Role) -> None:
        """Set the role of tensors, whether or not they have been seen before."""
        for tensor in tree_leaves(list(tensors)):
            if isinstance(tensor, torch.Tensor):
                self._roles[self._number(tensor.untyped_storage(), role)] = role

    def timeline(self) -> Timeline:
        """Return the timeline of all recorded storages."""
        sizes = list(self._sizes)
        for number, mark in self._passing:
            sizes[number] = self._kernels.taken.get(mark, 0) if self._kernels else 0
        return Timeline(sizes, list(self._roles), list(self._moments))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:  # a view of a known storage, or of an earlier one such as a data set's
            return result
        role: Role = "activations" if torch.is_grad_enabled() else "workspace"
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._number(leaf.untyped_storage(), role)
        if self._kernels is not None and func.namespace == "aten":
            self._note_kernel(self._kernels, func, args, kwargs or {}, result)
        return result

    def _note_kernel(self, kernels: Kernels, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self._sizes.append(0)
        self._roles.append("workspace")
        self._moments += [len(self._sizes), -len(self._sizes)]  # also for skipped kernels, since timelines are compared
        if sum(map(_bytes, tree_leaves(result))) > SMALL * self._live:
            mark = kernels.run(func, args, kwargs)
            if mark is not None:
                self._passing.append((len(self._sizes) - 1, mark))

    def _number(self, storage: torch.UntypedStorage, role: Role) -> int:
        key = id(storage)
        if key not in self._known:
            self._sizes.append(storage.nbytes())
            self._live += storage.nbytes()
            self._roles.append(role)
            self._moments.append(len(self._sizes))
            self._known[key] = len(self._sizes) - 1, weakref.ref(storage, lambda _: self._forget(key))
        return self._known[key][0]

    def _forget(self, key: int) -> None:
        number, _ = self._known.pop(key)
        self._moments.append(-number - 1)
        self._live -= self._sizes[number]


def _bytes(leaf: Any) -> int:
    return leaf.numel() * leaf.element_size() if isinstance(leaf, torch.Tensor) else 0
