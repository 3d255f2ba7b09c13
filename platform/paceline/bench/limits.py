"""A limit to what hangs in this very process."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 5.0
"""It is raised again in what catches every exception."""
SOON_SECONDS = 0.001
"""The shortest time of an alarm; 0 would switch it off."""


class LimitReached(BaseException):
    """The limit has been reached. No `Exception`, since the code that hangs may catch those."""


@contextmanager
def raising_after(seconds: float) -> Iterator[None]:
    """End the body by an exception when it takes longer; one that hangs outside of Python continues until it returns.

    Away from the main thread, where Python delivers no signals, this does nothing; likewise for an infinite limit.

    Raises:
        LimitReached: it did.
    """
    if math.isinf(seconds) or threading.current_thread() is not threading.main_thread():
        yield
        return

    is_over = is_done = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        if not is_done:
            is_over = True
            raise LimitReached

    begun, before = time.monotonic(), signal.signal(signal.SIGALRM, end)
    others, again = signal.setitimer(signal.ITIMER_REAL, max(seconds, SOON_SECONDS), AGAIN_SECONDS)
    try:
        yield
        if is_over:  # and something has caught that
            raise LimitReached
    finally:
        is_done = True  # before all else: an alarm may go off at any line
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if others:  # somebody else's alarm goes off when it would have
            signal.setitimer(signal.ITIMER_REAL, max(others - (time.monotonic() - begun), SOON_SECONDS), again)
