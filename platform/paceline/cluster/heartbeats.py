"""Heartbeats of the processes of a worker group, by which a rank that has stopped is found.

A rank that was stopped, or whose machine is gone from the network, keeps the others waiting in their collective
operation until that times out. Missing heartbeats identify it long before.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.cluster.worker_group import resumable_failure

SILENCE_SECONDS = 60.0
"""Seconds without a heartbeat after which a rank is reported."""
BEATS = 12
"""Number of heartbeats in that time."""


class Heartbeat(threading.Thread):
    """Thread of a worker that reports to the run's coordinator, as long as the process runs at all.

    Args:
        report: takes the rank and where it runs; does not wait for an answer.
    """

    def __init__(self, report: Callable[[int, str], Any], rank: int, silence_seconds: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._report, self._rank, self._seconds = report, rank, silence_seconds / BEATS
        self._place = f"process {os.getpid()} on {socket.gethostname()}"
        self._stopped = threading.Event()

    def run(self) -> None:
        self._report(self._rank, self._place)
        while not self._stopped.wait(self._seconds):
            self._report(self._rank, self._place)

    def stop(self) -> None:
        """End the heartbeats, once the rank has done its work."""
        self._stopped.set()


@dataclass
class _Rank:
    place: str
    heard: float
    is_named: bool = False


@dataclass(frozen=True)
class SilentRank:
    """A rank that gives no heartbeat."""

    rank: int
    place: str
    """Process and machine of the rank."""
    seconds: float
    """Seconds since its last heartbeat."""


class Heartbeats:
    """Time of the last heartbeat of each rank in a worker group."""

    def __init__(self, silence_seconds: float = SILENCE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.silence_seconds = silence_seconds
        self._clock = clock
        self._ranks: dict[int, _Rank] = {}

    def beat(self, rank: int, place: str) -> None:
        """Record a heartbeat. A new process of the same rank replaces the earlier one."""
        self._ranks[rank] = _Rank(place, self._clock())

    def forget(self) -> None:
        """Forget all ranks: another group has started, or training is over."""
        self._ranks = {}

    def silent(self) -> list[SilentRank]:
        """Return the ranks that have not been heard for too long."""
        now = self._clock()
        ages = {rank: now - each.heard for rank, each in self._ranks.items()}
        return [
            SilentRank(rank, self._ranks[rank].place, age)
            for rank, age in sorted(ages.items())
            if age > self.silence_seconds
        ]

    def newly_silent(self) -> list[SilentRank]:
        """Return the silent ranks that this has not returned before, or that were heard since."""
        found = [each for each in self.silent() if not self._ranks[each.rank].is_named]
        for each in found:
            self._ranks[each.rank].is_named = True
        return found


def silence_warning(silent: SilentRank) -> str:
    """Return the warning about a rank that gives no heartbeat."""
    return f"{_silence(silent)}. The other ranks wait for it, at most `parallel.timeout_seconds`"


def lost_warning(rank: int, reason: str) -> str:
    """Return the warning about a rank that has lost its connection to the others."""
    loss = f"rank {rank} has lost its connection to the others: {reason.rstrip('.')}"
    return f"{loss}. The workers are started again from the newest checkpoint, unless that was once too often"


def silence_failure(silent: Sequence[SilentRank]) -> dict[str, Any] | None:
    """Return the failure of a group that waited for silent ranks in vain, with the fields of `engine.failure.Failure`;
    None without silent ranks."""
    if not silent:
        return None
    return resumable_failure("; ".join(map(_silence, silent)), "rank-silent")


def _silence(silent: SilentRank) -> str:
    who = f"rank {silent.rank} ({silent.place})"
    return f"{who} has not answered for {silent.seconds:.0f} s: it is stopped, or its machine hangs or is not reachable"
