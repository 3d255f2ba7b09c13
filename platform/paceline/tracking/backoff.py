"""Growing waits between attempts."""

import random
import time

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0


class Backoff:
    """Longer after each failure in a row, and never quite as long as others wait.

    Args:
        longest_seconds: by default `LONGEST_SECONDS`.
    """

    def __init__(self, longest_seconds: float | None = None) -> None:
        self._longest = longest_seconds
        self._failures = 0
        self._due = 0.0

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._due - time.monotonic())

    def failed(self) -> None:
        """Note that an attempt has failed."""
        self._failures += 1
        longest = LONGEST_SECONDS if self._longest is None else self._longest
        seconds = min(longest, FIRST_SECONDS * 2.0 ** min(self._failures - 1, 16))
        self._due = time.monotonic() + seconds * random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Note that an attempt has succeeded."""
        self._failures, self._due = 0, 0.0

    def hurry(self) -> None:
        """Have the next attempt made at once."""
        self._due = 0.0
