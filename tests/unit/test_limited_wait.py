"""Waiting for work for a limited time."""

import threading
import time

import pytest

from paceline.limited_wait import TooSlow, within


def test_the_result_of_work_is_returned_and_its_error_raised() -> None:
    assert within(5.0, lambda: threading.current_thread().name, "apart") == "apart"

    def fail() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        within(5.0, fail, "apart")


def test_work_that_takes_longer_is_not_waited_for() -> None:
    may_end = threading.Event()
    begun = time.monotonic()
    with pytest.raises(TooSlow):
        within(0.05, may_end.wait, "slow")
    assert time.monotonic() - begun < 2
    (thread,) = (each for each in threading.enumerate() if each.name == "slow")
    assert thread.daemon
    may_end.set()
    thread.join(5)
    assert not thread.is_alive()
