"""Ctrl-C, SIGTERM and SIGHUP: the first one asks for a clean stop, the second one ends the program at once.

SIGHUP says that the terminal was closed. Nothing can be shown on it any more, and the kernel and the shell may both say
so: it never counts as a second signal. Where it is ignored, as under `nohup`, it stays so.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_swallowed = threading.Event()
"""Set by an interrupt that `terminating_interrupts` has raised, until it ends the body."""


@contextmanager
def terminating_interrupts() -> Iterator[None]:
    """While the body runs, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; so does its end, if a library has caught
    that.

    pydantic, for one, takes any exception in a discriminator function for a missing value. `raise_swallowed_interrupt`
    does the same between two parts of a long body. Away from the main thread, where Python delivers no signals, this
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt() -> None:
        _swallowed.set()
        raise KeyboardInterrupt

    _swallowed.clear()
    numbers = [signal.SIGTERM, *_hangup()]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    with _handled(numbers, lambda is_first: interrupt()):
        try:
            yield
            raise_swallowed_interrupt()
        finally:
            _swallowed.clear()


def raise_swallowed_interrupt() -> None:
    """Raise KeyboardInterrupt if `terminating_interrupts` has raised one that never arrived."""
    if _swallowed.is_set():
        raise KeyboardInterrupt


@contextmanager
def first_interrupt_calls(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """While the body runs, the first SIGINT, SIGTERM or SIGHUP calls `ask_to_stop`; the next raises KeyboardInterrupt.

    Away from the main thread, where Python delivers no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(is_first: bool) -> None:
        if not is_first:
            raise KeyboardInterrupt
        ask_to_stop()

    with _handled([signal.SIGINT, signal.SIGTERM, *_hangup()], handle):
        yield


@contextmanager
def hangup_held_back() -> Iterator[None]:
    """Hold SIGHUP back during the body, which processes that it starts inherit.

    A closed terminal sends it to all of them, and they have to live until this process has saved its state.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextmanager
def _handled(numbers: list[signal.Signals], handle: Callable[[bool], object]) -> Iterator[None]:
    """Have signals handled during the body.

    Args:
        handle: is given whether a signal is the first one; not called for a SIGHUP that is not.
    """
    seen = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if number == signal.SIGHUP:
            _leave_terminal()
            if seen:
                return
        seen += 1
        handle(seen == 1)

    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hangup() -> list[signal.Signals]:
    return [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]


def _leave_terminal() -> None:
    """Send what is still to be shown nowhere: to write to a terminal that was closed is an error."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (1, 2):
            if _is_terminal(descriptor):
                os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _is_terminal(descriptor: int) -> bool:
    """True for a terminal, and for what was one: it says nothing of itself any more."""
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.isatty(descriptor)
    return name.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
