"""Puts the clock around every seam of the engine, from outside, and takes it away again.

loader.load                data (transfer inside of it)
pass.forward               forward (with DDP's buffers: communication)
pass.backward              backward, and its end: communication or waiting
precision.step             optimizer
trainer.after_step         logging
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline._compat.torch import BUFFER_SYNC
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.order import MicroBatch
from paceline.engine.trainer import Trainer
from paceline.profiling.clock import BlockedTime, PartClock
from paceline.profiling.exchange import Exposed
from paceline.profiling.parts import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    LOGGING,
    OPTIMIZER,
    TRANSFER,
)

BUFFERS = "buffers"


class Watch:
    """Measurements of one rank's steps."""

    def __init__(self, trainer: Trainer, forward_backward: LocalForwardBackward) -> None:
        self._trainer = trainer
        self._pass = forward_backward
        device = trainer.dist.device
        self._is_cuda = device.type == "cuda"
        self.clock = PartClock((lambda: torch.cuda.synchronize(device)) if self._is_cuda else None)
        self._blocked = BlockedTime()
        self.after_step: dict[str, float] = {}
        """Seconds of `logging` by what they were spent on: `evaluation`, `checkpoints`."""
        self.syncs = 0
        """Operations in forward passes that made the host wait for the GPU."""

    def begin(self) -> None:
        """The first step begins now; forgets what was before."""
        self._blocked.reset()
        self.after_step, self.syncs = {}, 0
        self.clock.begin()

    def blocked(self) -> dict[str, float]:
        """Seconds in `data` and `forward` in which the process did nothing at all; empty where that is not known."""
        if self._is_cuda or not self._blocked.is_known:
            return {}
        seconds = self._blocked.seconds
        return {DATA: seconds[DATA], FORWARD: max(seconds[FORWARD] - seconds[BUFFERS], 0.0)}

    @contextmanager
    def put_on(self) -> Iterator[None]:
        """Inside, the steps are watched."""
        trainer, clock, blocked = self._trainer, self.clock, self._blocked
        loader, precision, meter = trainer.map_style.loader, trainer.state.precision, trainer.meter
        with ExitStack() as stack:
            stack.callback(blocked.close)
            put(stack, loader, "load", self._timed_load(loader.load))
            put(stack, loader, "start", clock.timed(TRANSFER, loader.start))
            forward = blocked.watched(FORWARD, self._counting_syncs(self._pass.forward))
            put(stack, self._pass, "forward", clock.timed(FORWARD, forward))
            if self._pass.before_exchange is not None:
                put(stack, self._pass, "before_exchange", clock.timed(LOGGING, self._pass.before_exchange))
            exposed = Exposed(trainer.model, trainer.dist.device, stack)
            put(stack, self._pass, "backward", self._timed_backward(self._pass.backward, exposed))
            if isinstance(trainer.model, DistributedDataParallel):
                sync = blocked.watched(BUFFERS, getattr(trainer.model, BUFFER_SYNC))
                put(stack, trainer.model, BUFFER_SYNC, clock.timed(COMMUNICATION, sync))
            put(stack, trainer.step, "ranks", _TimedRanks(**vars(trainer.dist), clock=clock))
            put(stack, precision, "step", clock.timed(OPTIMIZER, precision.step))
            put(stack, trainer, "after_step", clock.timed(LOGGING, trainer.after_step))
            put(stack, meter, "exclude", self._noted_exclude(meter.exclude))
            yield

    def _timed_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        fetch = self._blocked.watched(DATA, self.clock.timed(DATA, next))
        begin = self.clock.timed(DATA, load)

        def timed(epoch: int, micro_batches: Any) -> Iterator[tuple[MicroBatch, Any]]:
            batches = begin(epoch, micro_batches)
            while True:
                item = fetch(batches, None)
                if item is None:
                    return
                yield item

        return timed

    def _timed_backward(self, backward: Callable[..., None], exposed: Exposed) -> Callable[..., None]:
        def timed(loss: torch.Tensor, gradient: torch.Tensor) -> None:
            exposed.begin()
            with self.clock.part(BACKWARD):
                backward(loss, gradient)
                seconds = exposed.end()
            self.clock.move(seconds, BACKWARD, COMMUNICATION)

        return timed

    def _noted_exclude(self, exclude: Callable[[float, str], None]) -> Callable[[float, str], None]:
        def noted(seconds: float, spent_on: str) -> None:
            self.after_step[spent_on] = self.after_step.get(spent_on, 0.0) + seconds
            exclude(seconds, spent_on)

        return noted

    def _counting_syncs(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The same forward pass; each wait for the GPU that torch sees in it is counted."""
        if not self._is_cuda:
            return forward

        def counting(batch: Any) -> Any:
            before = torch.cuda.get_sync_debug_mode()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    output = forward(batch)
                finally:
                    torch.cuda.set_sync_debug_mode(before)
            self.syncs += sum("synchronizing CUDA operation" in str(each.message) for each in told)
            return output

        return counting


@dataclass(frozen=True)
class _TimedRanks(DistContext):
    """DistContext whose sums, beside DDP's, count as communication: of the weights of a language model's tokens."""

    clock: PartClock | None = None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        assert self.clock is not None
        with self.clock.part(COMMUNICATION):
            return super().sum(values)


def put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of one object until the stack is closed."""
    own = vars(owner)
    if name in own:
        stack.callback(setattr, owner, name, own[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)
