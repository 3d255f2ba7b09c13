"""Agreement between ranks on when to save or to stop, without a collective operation at every step."""

from enum import IntEnum
from time import perf_counter

from paceline.engine.ranks import Ranks

INTERVAL_SECONDS = 0.5


class Wish(IntEnum):
    """What all ranks are to do after a step."""

    GO_ON = 0
    SAVE = 1
    STOP = 2
    """Save the state, and end."""


class Consensus:
    """All ranks save or stop after the same step, at most about half a second after rank 0 was asked to.

    Rank 0 broadcasts, at steps known to all, what to do and how many steps later to ask again.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._next_step = 0
        self._last_time = perf_counter()
        self._interval = 1

    def agreed(self, step: int, wish: Wish, soon: bool = False) -> Wish:
        """What to do after `step`. Every rank must call it after every step; the rest counts on rank 0.

        Args:
            soon: ask again after the next step.
        """
        if self._ranks.world_size == 1:
            return wish
        if step < self._next_step:
            return Wish.GO_ON
        interval = 1 if soon else self._following_interval()
        told, interval_of_first = self._ranks.from_first([float(wish), float(interval)])
        self._next_step = step + int(interval_of_first)
        return Wish(int(told))

    def is_due(self, step: int) -> bool:
        """Whether `agreed` will look at the wish at this step."""
        return self._ranks.world_size == 1 or step >= self._next_step

    def _following_interval(self) -> int:
        now = perf_counter()
        seconds_per_step = (now - self._last_time) / self._interval
        self._last_time = now
        self._interval = max(1, min(1000, int(INTERVAL_SECONDS / max(seconds_per_step, 1e-6)), self._interval * 4))
        return self._interval
