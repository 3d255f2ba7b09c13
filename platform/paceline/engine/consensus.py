"""Agreement between ranks on when to stop, without a collective operation at every step."""

from time import perf_counter

from paceline.engine.ranks import Ranks

INTERVAL_SECONDS = 0.5


class StopConsensus:
    """All ranks stop after the same step, at most about half a second after rank 0 was asked to.

    Rank 0 broadcasts, at steps known to all, whether to stop and how many steps later to ask again.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._next_step = 0
        self._last_time = perf_counter()
        self._interval = 1

    def agreed(self, step: int, requested: bool) -> bool:
        """Whether to stop after `step`. Every rank must call it after every step; `requested` counts on rank 0."""
        if self._ranks.world_size == 1:
            return requested
        if step < self._next_step:
            return False
        stop, interval = self._ranks.from_first([float(requested), float(self._following_interval())])
        self._next_step = step + int(interval)
        return bool(stop)

    def is_due(self, step: int) -> bool:
        """Whether `agreed` will look at `requested` at this step."""
        return self._ranks.world_size == 1 or step >= self._next_step

    def _following_interval(self) -> int:
        now = perf_counter()
        seconds_per_step = (now - self._last_time) / self._interval
        self._last_time = now
        self._interval = max(1, min(1000, int(INTERVAL_SECONDS / max(seconds_per_step, 1e-6)), self._interval * 4))
        return self._interval
