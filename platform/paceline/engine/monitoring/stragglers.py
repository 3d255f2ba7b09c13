"""Finds the rank that the others wait for, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from statistics import median
from time import perf_counter

FACTOR = 1.2
"""A straggler takes this many times as long as the others, or longer."""
LOGS = 3
"""In so many logs in a row."""
SECONDS = 1.0
"""And for so long: with steps of a millisecond, three logs are over within one hiccup of the machine."""


@dataclass(frozen=True)
class Straggler:
    """A rank that takes longer than the others."""

    rank: int
    factor: float
    """Its time as a multiple of the others' median."""
    seconds: float
    """Its own time per optimizer step, before it waits for others."""
    others_seconds: float
    """Median of the others'."""


class StragglerWatch:
    """Is shown the ranks' own times at each log, and names each straggler once."""

    def __init__(self) -> None:
        self._suspect: int | None = None
        self._logs = 0
        self._since = self._before = inf  # until the first log, whose steps began at a time that is not known
        self._named: set[int] = set()

    def see(self, seconds: Sequence[float]) -> Straggler | None:
        """A rank to be named now.

        Args:
            seconds: the own time per optimizer step since the last log of each rank, in order of rank.
        """
        found = slowest(seconds)
        now = perf_counter()
        self._before = min(self._before, now)
        if found is None or found.rank != self._suspect:
            # what was measured now began at the last log
            self._suspect, self._logs, self._since = (found.rank if found else None), 0, self._before
        self._logs += 1
        self._before = now
        if found is None or found.rank in self._named or self._logs < LOGS or now - self._since < SECONDS:
            return None
        self._named.add(found.rank)
        return found


def slowest(seconds: Sequence[float]) -> Straggler | None:
    """The slowest of two or more ranks, if it is slower by `FACTOR` than the others are in the middle."""
    if len(seconds) < 2 or any(map(isnan, seconds)):
        return None
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    others = median([*seconds[:rank], *seconds[rank + 1 :]])
    if others <= 0 or seconds[rank] <= FACTOR * others:
        return None
    return Straggler(rank, seconds[rank] / others, seconds[rank], others)
