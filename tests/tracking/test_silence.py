"""An MLflow that has never answered: said in few words, and not waited for at the end."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking.causes import LONGEST, cause_text, is_silence, silence_of
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

DEAD = "http://127.0.0.1:9"
MakeRecord = Callable[..., RunRecord]


def raised(*errors: Exception) -> Exception:
    """The last of them, each raised while the one before it was handled."""
    try:
        if len(errors) > 1:
            raise raised(*errors[:-1])
        raise errors[0]
    except Exception as first:
        if len(errors) == 1:
            return first
        try:
            raise errors[-1]
        except Exception as last:
            return last


@pytest.mark.parametrize("is_apart", [False, True])
def test_the_end_does_not_wait_for_it(tmp_path: Path, record: MakeRecord, is_apart: bool) -> None:
    recorder = Recorder(tmp_path / "run", record(DEAD), apart=is_apart)
    recorder.append([Point("lr", 1.0, 1, 1)])  # which needs no picture
    recorder.start_shipping()
    began = time.monotonic()
    report = recorder.close("FINISHED", timeout_seconds=60.0)
    assert time.monotonic() - began < 3
    assert str(report.error).startswith("MLflow does not answer")
    assert report.unsent >= 3  # the point, the note and the status


def test_the_log_does_not_tell_it_again(tmp_path: Path, record: MakeRecord, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    recorder = Recorder(tmp_path / "run", record(DEAD))
    recorder.start_shipping()
    deadline = time.monotonic() + 60
    while not recorder.report().error:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert recorder.report().error == "MLflow does not answer: Connection refused"
    assert not caplog.messages
    recorder.abandon()


def test_a_store_that_comes_up_later_is_waited_for(sqlite_uri: str, tmp_path: Path, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    assert recorder.close("FINISHED").error is None  # it has not answered before either


def test_who_answers_and_who_does_not(server_uri: str, sqlite_uri: str) -> None:
    assert silence_of(server_uri, 3.0) is silence_of(sqlite_uri, 1.0) is None
    assert silence_of(DEAD, 1.0) == f"MLflow does not answer at {DEAD}: [Errno 111] Connection refused"


def test_what_is_wrong_is_told_in_few_words() -> None:
    chain = raised(ConnectionRefusedError(111, "Connection refused"), OSError("Max retries"), ValueError("API " * 200))
    assert is_silence(chain)
    assert cause_text(chain) == "MLflow does not answer: Connection refused"
    other = ValueError("no such experiment (Caused by X)\nand what not")
    assert not is_silence(other)
    assert cause_text(other) == "ValueError: no such experiment"
    assert len(cause_text(ValueError("x" * 1000))) == LONGEST
