"""Scratch memory of CPU kernels: measured by running each of them once, on zeros.

For example, oneDNN converts the inputs and outputs of a convolution to a layout that depends on processor and shape.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from paceline._compat.torch import no_dispatch, tree_leaves, tree_map_only

MARK = "paceline kernel "
SECONDS = 30.0
"""Time limit in seconds for running kernels, for all traces together."""
LARGEST_BYTES = 2**31
"""Kernels with more bytes of arguments are not run: the zeros would fill this machine's memory."""


class Kernels:
    """Runs each kernel once per set of arguments, and measures its scratch memory."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._left = seconds
        self._marks: dict[Hashable, str] = {}
        self.left_out = False
        """True if a kernel was not run because its arguments were too large, or because no time was left."""
        self.taken: dict[str, int] = {}
        """Bytes of scratch memory, without arguments and results, by mark; for kernels of an earlier `profiled`."""

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the mark of a kernel with its arguments, running it if it is new; None if it cannot be run.

        Args:
            args: arguments whose tensors have no data; zeros of the same shapes replace them.
        """
        key = _signature(func, args, kwargs)
        if key not in self._marks and (self._left <= 0 or _bytes((args, kwargs)) > LARGEST_BYTES):
            self.left_out = True
        elif key not in self._marks:
            self._marks[key] = f"{MARK}{len(self._marks)}"
            begun = monotonic()
            with no_dispatch():
                _run(self._marks[key], func, *tree_map_only(torch.Tensor, _zeros, (args, kwargs)))
            self._left -= monotonic() - begun
        return self._marks.get(key)

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Profile the kernels that are run in the body."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield
        events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
        self.taken.update(_taken(events))


def _run(mark: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        with record_function(mark):
            result = func(*args, **kwargs)
    except Exception:  # the kernel fails on zeros
        return
    del result


def _taken(events: list[Any]) -> Iterator[tuple[str, int]]:
    mark, end, held, most = "", 0, 0, 0
    for event in events:
        if mark and event.start_ns() > end:
            yield mark, max(most - held, 0)
            mark = ""
        if event.name().startswith(MARK):
            mark, end, held, most = event.name(), event.start_ns() + event.duration_ns(), 0, 0
        elif mark and event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    if mark:
        yield mark, max(most - held, 0)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).zero_()


def _bytes(arguments: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tree_leaves(arguments) if isinstance(each, torch.Tensor))


def _signature(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    return func, tuple(map(_described, tree_leaves((args, kwargs))))


def _described(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.stride()
    return repr(leaf)
