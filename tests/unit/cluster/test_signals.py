"""SIGINT, SIGTERM and SIGHUP that end a command, whatever catches the exception that they raise."""

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paceline.cluster.signals import (
    first_interrupt_calls,
    hangup_held_back,
    raise_swallowed_interrupt,
    terminating_interrupts,
)

ALL = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@pytest.fixture(autouse=True)
def _harmless_hangup() -> Iterator[None]:
    """One that nobody handles must not end the tests."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: pytest.fail("nobody has handled SIGHUP"))
    yield
    signal.signal(signal.SIGHUP, before)


def swallowed(number: signal.Signals) -> None:
    """An interrupt in code of a library that catches everything."""
    with suppress(BaseException):
        signal.raise_signal(number)


@ALL
def test_a_signal_interrupts_the_body(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), terminating_interrupts():
        signal.raise_signal(number)
    raise_swallowed_interrupt()  # it has arrived


@ALL
def test_a_swallowed_interrupt_is_raised_between_two_parts_or_at_the_end(number: signal.Signals) -> None:
    with suppress(KeyboardInterrupt), terminating_interrupts():
        raise_swallowed_interrupt()
        swallowed(number)
        with pytest.raises(KeyboardInterrupt):
            raise_swallowed_interrupt()
    with pytest.raises(KeyboardInterrupt), terminating_interrupts():
        swallowed(number)


def test_the_handlers_are_those_of_before() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with suppress(KeyboardInterrupt), terminating_interrupts():
        swallowed(signal.SIGTERM)
    with first_interrupt_calls(lambda: None):
        pass
    assert [signal.getsignal(number) for number in numbers] == before


@ALL
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends(number: signal.Signals, second: signal.Signals) -> None:
    asked: list[bool] = []
    with first_interrupt_calls(lambda: asked.append(True)):
        signal.raise_signal(number)
        assert asked == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
    assert asked == [True]


@ALL
def test_a_closed_terminal_is_never_a_second_signal(number: signal.Signals) -> None:
    asked: list[bool] = []
    with first_interrupt_calls(lambda: asked.append(True)):
        for each in (number, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(each)
    assert asked == [True]


def test_under_nohup_nothing_stops() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with terminating_interrupts(), first_interrupt_calls(lambda: pytest.fail("asked to stop")):
        signal.raise_signal(signal.SIGHUP)


@contextmanager
def stderr_to(descriptor: int) -> Iterator[None]:
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_what_is_shown_after_the_terminal_was_closed_is_no_error() -> None:
    controller, terminal = pty.openpty()
    with stderr_to(terminal), first_interrupt_calls(lambda: None):
        os.write(2, b"before\n")
        assert os.read(controller, 100).startswith(b"before")
        os.close(controller)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(2, b"to nobody\n")
        signal.raise_signal(signal.SIGHUP)
        os.write(2, b"after\n")


def test_what_is_not_shown_on_a_terminal_is_still_shown(tmp_path: Path) -> None:
    with stderr_to(os.open(tmp_path / "shown", os.O_CREAT | os.O_RDWR)), first_interrupt_calls(lambda: None):
        signal.raise_signal(signal.SIGHUP)
        os.write(2, b"saved")
    assert (tmp_path / "shown").read_bytes() == b"saved"


def test_a_signal_that_was_held_back_arrives_afterwards() -> None:
    asked: list[bool] = []
    with first_interrupt_calls(lambda: asked.append(True)):
        with hangup_held_back():
            signal.raise_signal(signal.SIGHUP)
            assert asked == []
        assert asked == [True]
