"""A clock that gives every moment of a step to exactly one of its parts."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

from paceline.profiling.parts import IDLE

Result = TypeVar("Result")

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: nanoseconds that the thread ran, and that it waited for a core."""


class PartClock:
    """Parts may be inside of each other: the inner one's time is not the outer one's. Of one thread."""

    def __init__(self, wait_for_device: Callable[[], None] | None = None) -> None:
        """Args:
        wait_for_device: called at each change of part, since a GPU's work would count where it is waited for. None on
            CPU, where what has been called is done.
        """
        self._wait_for_device = wait_for_device
        self.waits_for_device = wait_for_device is not None
        """Can be switched off; the parts are then the host's alone."""
        self._part = IDLE
        self._since = perf_counter()
        self._step: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []
        """Seconds by part of each step that has ended."""

    def synchronize(self) -> None:
        """Wait for the device, unless that is switched off."""
        if self._wait_for_device is not None and self.waits_for_device:
            self._wait_for_device()

    def begin(self) -> None:
        """The first step begins now; forgets what was before."""
        self._mark()
        self._step, self.steps = {}, []

    def end_step(self) -> None:
        """A step ends, and the next one begins."""
        self._mark()
        self.steps.append(self._step)
        self._step = {}

    def enter(self, part: str) -> str:
        """From now on it is this part's time; returns whose it was."""
        self._mark()
        outer, self._part = self._part, part
        return outer

    @contextmanager
    def part(self, part: str) -> Iterator[None]:
        """Count the time of the body as that of a part."""
        outer = self.enter(part)
        try:
            yield
        finally:
            self.enter(outer)

    def move(self, seconds: float, source: str, target: str) -> None:
        """Give some of a part's time in this step to another."""
        seconds = min(max(seconds, 0.0), self._step.get(source, 0.0))
        self._add(source, -seconds)
        self._add(target, seconds)

    def timed(self, part: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """The same function, whose time is this part's."""

        def timed(*arguments: Any, **named: Any) -> Result:
            with self.part(part):
                return function(*arguments, **named)

        return timed

    def _add(self, part: str, seconds: float) -> None:
        self._step[part] = self._step.get(part, 0.0) + seconds

    def _mark(self) -> None:
        self.synchronize()
        now = perf_counter()
        self._add(self._part, now - self._since)
        self._since = now


class BlockedTime:
    """Time in which this process is blocked in some calls: it neither computes nor waits for a core.

    With several threads it is the least that this can have been. Linux only: elsewhere `is_known` is false.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """Since the last `reset`, by part."""
        self._file = os.open(SCHEDSTAT, os.O_RDONLY) if SCHEDSTAT.exists() else None

    @property
    def is_known(self) -> bool:
        """True if the system tells."""
        return self._file is not None

    def reset(self) -> None:
        """Start again."""
        self.seconds.clear()

    def watched(self, part: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """The same function, in which blocked time counts for `part`."""

        def watched(*arguments: Any, **named: Any) -> Result:
            before = self._busy()
            start = perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                wall = perf_counter() - start
                self.seconds[part] += max(wall - (self._busy() - before), 0.0)

        return watched if self.is_known else function

    def close(self) -> None:
        """Release the system's file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _busy(self) -> float:
        assert self._file is not None
        queued = int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        return process_time() + queued
