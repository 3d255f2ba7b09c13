"""Time of DDP's exchange of gradients after backward has ended, where nothing hides it."""

from contextlib import ExitStack
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Exposed:
    """From a backward pass's last gradient to its end: by then DDP has every bucket under way, and waits for them.

    No hook is put on the exchange itself, so that it stays what it is, and may have a `comm_hook`. What such a hook
    computes on all buckets but the last counts as backward.
    """

    def __init__(self, model: nn.Module, device: torch.device, stack: ExitStack) -> None:
        """Args:
        stack: when it is closed, the gradients are no longer watched.
        """
        self._cuda = device.type == "cuda"
        self._last: Any = None
        if isinstance(model, DistributedDataParallel):
            for parameter in model.parameters():
                if parameter.requires_grad:
                    handle = parameter.register_post_accumulate_grad_hook(self._see)  # type: ignore[no-untyped-call]
                    stack.callback(handle.remove)

    def begin(self) -> None:
        """A backward pass begins."""
        self._last = None

    def end(self) -> float:
        """Seconds since its last gradient. Waits for the GPU."""
        if self._last is None:
            return 0.0
        if not self._cuda:
            return float(perf_counter() - self._last)
        end = _event()
        end.synchronize()
        return float(self._last.elapsed_time(end)) / 1000

    def _see(self, parameter: torch.Tensor) -> None:
        self._last = _event() if self._cuda else perf_counter()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
