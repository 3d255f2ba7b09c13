"""Ctrl-C and SIGTERM: the first one asks for a clean stop, the second one ends the program at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminating_interrupts() -> Iterator[None]:
    """While the body runs, SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    Away from the main thread, where Python delivers no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def first_interrupt_calls(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """While the body runs, the first SIGINT or SIGTERM calls `ask_to_stop`; the next raises KeyboardInterrupt.

    Away from the main thread, where Python delivers no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask_to_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
