"""Waiting for work that cannot be cancelled, such as looking up a name or a request of pyarrow, for a limited time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


class TooSlow(Exception):
    """The work takes longer than it was waited for. It continues, in a thread that keeps no process from ending."""


def within(seconds: float, work: Callable[[], Result], name: str) -> Result:
    """Return what the work returns, and raise what it raises.

    Args:
        name: name of its thread.

    Raises:
        TooSlow: it takes longer.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome.done():
        raise TooSlow(f"it takes more than {seconds:g} s")
    return outcome.result()
