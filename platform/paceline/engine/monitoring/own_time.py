"""How long a rank is busy in a step before it waits for the others.

With an exchange of gradients in each step, a whole step takes equally long on all ranks, however slow one of them is.
What tells it is the time until it has something to exchange: waiting for data, the forward passes, and all backward
passes but the last one.
"""

from time import perf_counter
from typing import Protocol

import torch


class OwnTime(Protocol):
    """Runs while the rank is busy by itself."""

    def arm(self) -> None:
        """The step that begins is one after which the time is read."""

    def start(self) -> None:
        """The rank is busy by itself; no news if it was already."""

    def stop(self) -> bool:
        """From here on it may wait for others; returns whether it was busy by itself."""

    def end_step(self) -> None:
        """An optimizer step's passes are over."""

    def read(self) -> float:
        """Mean seconds per step since the last reading; NaN without any. The device must have been waited for."""


def own_time(device: torch.device, world_size: int) -> OwnTime:
    """The clock for a device. A rank that is alone waits for nobody, and has none."""
    if world_size == 1:
        return NOT_TIMED
    return DeviceTime() if device.type == "cuda" else HostTime()


class NotTimed:
    """No clock."""

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
    """By this process's clock, which is the computation's own on CPU. Counts every step."""

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
    """By marks in the device's queue of work, since the host is far ahead of it. Counts the armed steps only.

    The marks cost the device nothing, and they are read when the losses behind them have been read, so that nothing
    waits for them. Written by CUDA's documentation: it has not been seen at work on a GPU yet.
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
        # a rank that had no sample has read no loss, and so not waited for its device
        if not spans or not spans[-1][1].query():  # type: ignore[no-untyped-call]
            return float("nan")
        return sum(float(begin.elapsed_time(end)) for begin, end in spans) / 1000


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
