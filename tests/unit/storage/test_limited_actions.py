"""What an action on a store that may hang is answered with."""

import threading

import pytest

from paceline import limited_wait
from paceline.storage.address import parse
from paceline.storage.remote_folder import within
from paceline.storage.store_faults import StoreFault

STORE = parse("s3://permission/runs")


def test_an_action_that_hangs_or_fails_is_a_fault_of_the_store() -> None:
    may_end = threading.Event()
    with pytest.raises(StoreFault) as silent:
        within(0.05, may_end.wait, STORE)
    may_end.set()
    assert silent.value.code == "store-silent"

    def fail() -> None:
        raise OSError("AWS Error ACCESS_DENIED during PutObject operation")

    with pytest.raises(StoreFault) as denied:
        within(5.0, fail, STORE)
    assert denied.value.code == "access-denied"


def test_an_interrupt_while_it_is_waited_for_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(limited_wait, "within", interrupted)
    with pytest.raises(KeyboardInterrupt):
        within(5.0, dict, STORE)
