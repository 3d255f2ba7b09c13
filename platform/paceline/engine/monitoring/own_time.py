"""Time that a rank is busy in a step before it waits for the others.

With an exchange of gradients in each step, a whole step takes equally long on all ranks, however slow one of them is.
A slow rank shows in the time until it has something to exchange: waiting for data, the forward passes, and all backward
passes but the last one.
"""

from time import perf_counter
from typing import Protocol

import torch


class OwnTime(Protocol):
    """Clock that runs while the rank is busy by itself."""

    def arm(self) -> None:
        """Prepare for a step after which the time is read. Call it before the step."""

    def start(self) -> None:
        """Start the clock: the rank is busy by itself. No effect if it runs already."""

    def stop(self) -> bool:
        """Stop the clock, since the rank may wait for others now. Returns True if the clock was running."""

    def end_step(self) -> None:
        """Note the end of an optimizer step's passes."""

    def read(self) -> float:
        """Return the mean seconds per step since the last reading; NaN without a step. Wait for the device before."""


def own_time(device: torch.device, world_size: int) -> OwnTime:
    """Return the clock for a device; `NOT_TIMED` in a world of one, where no rank waits for another."""
    if world_size == 1:
        return NOT_TIMED
    return DeviceTime() if device.type == "cuda" else HostTime()


class NotTimed:
    """Clock that never runs."""

    def arm(self) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> bool:
        return False

    def end_step(self) -> None:
        pass

    def read(self) -> float:
        return float("nan")


NOT_TIMED = NotTimed()


class HostTime:
    """Clock of this process, which is also that of the computation on CPU. Counts every step."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0
        self._steps = 0

    def arm(self) -> None:
        pass

    def start(self) -> None:
        if self._since is None:
            self._since = perf_counter()

    def stop(self) -> bool:
        if self._since is None:
            return False
        self._seconds += perf_counter() - self._since
        self._since = None
        return True

    def end_step(self) -> None:
        self._steps += 1

    def read(self) -> float:
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        return seconds / steps if steps else float("nan")


class DeviceTime:
    """Clock of CUDA events in the device's queue of work, since the host is far ahead of it. Counts armed steps only.

    The events cost the device nothing. They are read when the losses behind them have been read, so that nothing waits
    for them. Written from CUDA's documentation, and not tested on a GPU yet.
    """

    def __init__(self) -> None:
        self._is_armed = False
        self._begun: torch.cuda.Event | None = None
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def arm(self) -> None:
        self._is_armed = True
        self._begun, self._spans = None, []

    def start(self) -> None:
        if self._is_armed and self._begun is None:
            self._begun = _mark()

    def stop(self) -> bool:
        if self._begun is None:
            return False
        self._spans.append((self._begun, _mark()))
        self._begun = None
        return True

    def end_step(self) -> None:
        self._is_armed = False

    def read(self) -> float:
        spans, self._spans = self._spans, []
        # a rank without a sample has read no loss, and so has not waited for its device
        if not spans or not spans[-1][1].query():  # type: ignore[no-untyped-call]
            return float("nan")
        return sum(float(begin.elapsed_time(end)) for begin, end in spans) / 1000


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
