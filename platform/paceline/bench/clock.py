"""Clock of a study: the time that is left, and what is kept back for the end."""

import time
from collections.abc import Callable

PATIENCE_SHARE, LEAST_PATIENCE_SECONDS = 0.25, 60.0


class Clock:
    """Counts down from the moment the command began."""

    def __init__(self, budget_seconds: float, began: float, now: Callable[[], float] = time.monotonic) -> None:
        """Args:
        began: when the command began, on the same clock as `now`.
        """
        self.budget_seconds = budget_seconds
        self._end = began + budget_seconds
        self._now = now
        self.began = began
        self.reserved = 0.0
        """Seconds kept back for what comes later."""

    @property
    def left(self) -> float:
        """Seconds until the end, without what is kept back."""
        return self._end - self._now() - self.reserved

    @property
    def elapsed(self) -> float:
        """Seconds since the command began."""
        return self._now() - self.began

    @property
    def patience(self) -> float:
        """Seconds after which what should have ended counts as hanging: a share of the budget, since a job
        compiles as well, but not less than a minute."""
        return max(LEAST_PATIENCE_SECONDS, PATIENCE_SHARE * self.budget_seconds)

    @property
    def longest(self) -> float:
        """The same of what all else depends on: all the time that is left, where that is more."""
        return max(self.left, self.patience)

    def has(self, seconds: float) -> bool:
        """Return True if there is time for something that takes so long."""
        return self.left >= seconds
