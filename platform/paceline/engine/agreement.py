"""Agreement between ranks on when to save or to stop, without a collective operation at every step."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from paceline.callbacks.callback import Control
from paceline.engine.dist_context import DistContext
from paceline.errors import UnusableCode

INTERVAL_SECONDS = 0.5
INTERRUPT = Control.STOP + 1
"""Request to save and leave the run unfinished: the user, the sweep or the cluster asked for it."""


def requested_by(hook: Callable[..., Any], *arguments: Any) -> int:
    """Call a hook of a callback and return its request, a `Control` or `INTERRUPT`.

    Raises:
        UnusableCode: it returned something other than a `Control` or None.
    """
    request = hook(*arguments)
    if request is None:
        return Control.CONTINUE
    # True would count as Control.SAVE
    if isinstance(request, bool) or not isinstance(request, int) or not Control.CONTINUE <= request <= INTERRUPT:
        name = getattr(hook, "__qualname__", type(hook).__name__)
        raise UnusableCode(
            f"{name} returned {type(request).__name__}, not a paceline.Control. Return Control.STOP to finish the "
            "run, Control.SAVE to save a checkpoint, or None",
            "not-a-control",
            hook=name,
            returned=type(request).__name__,
        )
    return request


class Agreement:
    """All ranks save or stop after the same step, at most about half a second after any of them asked for it.

    At steps known to all, the ranks exchange the largest request and how many steps later they exchange again.
    """

    def __init__(self, ranks: DistContext) -> None:
        self._ranks = ranks
        self._next_step = 0
        self._last_exchange = perf_counter(), 0
        self._interval = 1
        self._pending = int(Control.CONTINUE)

    def agreed(self, step: int, request: int, now: bool = False, soon: bool = False) -> int:
        """Return the request that all ranks follow after `step`. Every rank must call it after every step.

        Args:
            request: request of this rank, a `Control` or `INTERRUPT`.
            now: exchange at this step; must be the same on all ranks.
            soon: exchange again after the next step.
        """
        if self._ranks.world_size == 1:
            return request
        self._pending = max(self._pending, request)
        if step < self._next_step and not now:
            return Control.CONTINUE
        interval = 1 if soon else self._following_interval(step)
        found, negative_interval = self._ranks.max_numbers([float(self._pending), -float(interval)])
        self._next_step = step - int(negative_interval)
        self._pending = int(Control.CONTINUE)
        return int(found)

    def is_due(self, step: int) -> bool:
        """True if the ranks exchange requests at this step."""
        return self._ranks.world_size == 1 or step >= self._next_step

    def _following_interval(self, step: int) -> int:
        now, (last_time, last_step) = perf_counter(), self._last_exchange
        seconds_per_step = (now - last_time) / max(step - last_step, 1)
        self._last_exchange = now, step
        self._interval = max(1, min(1000, int(INTERVAL_SECONDS / max(seconds_per_step, 1e-6)), self._interval * 4))
        return self._interval
