"""SIGINT and SIGTERM that end a command, whatever catches the exception that they raise."""

import signal
from contextlib import suppress

import pytest

from paceline.cluster.signals import raise_swallowed_interrupt, terminating_interrupts

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def swallowed(number: signal.Signals) -> None:
    """An interrupt in code of a library that catches everything."""
    with suppress(BaseException):
        signal.raise_signal(number)


@BOTH
def test_a_signal_interrupts_the_body(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), terminating_interrupts():
        signal.raise_signal(number)
    raise_swallowed_interrupt()  # it has arrived


@BOTH
def test_a_swallowed_interrupt_is_raised_between_two_parts_or_at_the_end(number: signal.Signals) -> None:
    with suppress(KeyboardInterrupt), terminating_interrupts():
        raise_swallowed_interrupt()
        swallowed(number)
        with pytest.raises(KeyboardInterrupt):
            raise_swallowed_interrupt()
    with pytest.raises(KeyboardInterrupt), terminating_interrupts():
        swallowed(number)


def test_the_handlers_are_those_of_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with suppress(KeyboardInterrupt), terminating_interrupts():
        swallowed(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
