"""Ctrl-C and SIGTERM: the first one asks for a clean stop, the second one ends the program at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_swallowed = threading.Event()
"""Set by an interrupt that `terminating_interrupts` has raised, until it ends the body."""


@contextmanager
def terminating_interrupts() -> Iterator[None]:
    """While the body runs, SIGINT and SIGTERM raise KeyboardInterrupt; so does its end, if a library has caught that.

    pydantic, for one, takes any exception in a discriminator function for a missing value. `raise_swallowed_interrupt`
    does the same between two parts of a long body. Away from the main thread, where Python delivers no signals, this
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _swallowed.set()
        raise KeyboardInterrupt

    _swallowed.clear()
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
        raise_swallowed_interrupt()
    finally:
        _swallowed.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_swallowed_interrupt() -> None:
    """Raise KeyboardInterrupt if `terminating_interrupts` has raised one that never arrived."""
    if _swallowed.is_set():
        raise KeyboardInterrupt


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
