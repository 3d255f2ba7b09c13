"""Shipping from a process of its own, for a process that trains."""

import errno
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.cluster.desk import Desk
from paceline.tracking import apart, backoff, remote
from paceline.tracking.apart import ShipperApart
from paceline.tracking.points import Point, Reading
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
from tracking.faulty_proxy import FaultyProxy

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]
CANARY = "canary-S3cr3t"


def process_of(recorder: Recorder) -> psutil.Process:
    shipper = recorder._shipper
    assert isinstance(shipper, ShipperApart)
    assert shipper._process is not None
    return psutil.Process(shipper._process.pid)


def test_everything_arrives_and_the_process_ends(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    about = record(sqlite_uri, artifacts={"config.yaml": "a: 1"})
    recorder = Recorder(tmp_path / "run", about, apart=True)
    recorder.start_shipping()
    recorder.start_shipping()
    process = process_of(recorder)
    deadline = time.monotonic() + 60
    while process.nice() < 10:  # the first thing that it does
        assert time.monotonic() < deadline
        time.sleep(0.05)
    recorder.append(points(1, 500))
    recorder.set_tags({"some": "tag"})
    report = recorder.close("FAILED", "it broke", timeout_seconds=200)
    assert (report.unsent, report.error) == (0, None)
    assert not process.is_running()
    assert len(stored(sqlite_uri, report.run_id)) == 499
    run = remote.connect(sqlite_uri).get_run(str(report.run_id))
    assert (run.info.status, run.data.tags["some"]) == ("FAILED", "tag")
    history = remote.connect(sqlite_uri).get_metric_history(str(report.run_id), "tracking/lag_seconds")
    assert [point.value for point in history] == [
        point.value for point in recorder.history() if point.key == "tracking/lag_seconds"
    ]
    assert recorder.close("FINISHED") == report


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, points: MakePoints
) -> None:
    proxy.order("sleep", "", 1000)
    address = proxy.uri.replace("http://", f"http://me:{CANARY}@")
    recorder = Recorder(tmp_path / "run", record(address), apart=True)
    recorder.append(points(1, 11))
    recorder.start_shipping()
    process = process_of(recorder)
    assert CANARY not in " ".join(process.cmdline())
    began = time.monotonic()
    report = recorder.close("FINISHED", timeout_seconds=0.5)
    assert time.monotonic() - began < 10
    assert report.unsent == 13
    assert "MLflow does not answer" in str(report.error)
    assert not process.is_running()


def test_why_nothing_arrives_is_in_the_report(tmp_path: Path, record: MakeRecord, points: MakePoints) -> None:
    recorder = Recorder(tmp_path / "run", record(f"sqlite:///{tmp_path}/nowhere/mlflow.db"), apart=True)
    recorder.append(points(1, 3))
    recorder.start_shipping()
    deadline = time.monotonic() + 120
    while not recorder.report().error:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "FileNotFoundError" in str(recorder.report().error)
    process = process_of(recorder)
    recorder.abandon()
    assert not process.is_running()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_process_that_was_killed_is_told_of_and_started_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri), apart=True)
    recorder.append(points(1, 50))
    recorder.start_shipping()
    first = process_of(recorder)
    first.kill()
    until(lambda: recorder.report().error == "the shipping process ended with -9")
    recorder.append(points(50, 100))

    def is_there_again() -> bool:
        recorder.start_shipping()  # as with each batch of readings
        return recorder.report().error is None

    until(is_there_again)
    assert process_of(recorder).pid != first.pid
    until(lambda: recorder.report().run_id and not recorder.report().unsent)
    report = recorder.close("FINISHED", timeout_seconds=120)
    assert (report.unsent, report.error) == (0, None)
    assert [step for _, step, _, _ in stored(sqlite_uri, report.run_id)] == list(range(1, 100))


def test_a_process_that_dies_at_the_end_is_started_again_then(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri), apart=True)
    recorder.append(points(1, 50))
    recorder.start_shipping()
    process_of(recorder).kill()
    report = recorder.close("FINISHED", timeout_seconds=120)
    assert (report.unsent, report.error) == (0, None)
    assert len(stored(sqlite_uri, report.run_id)) == 49


def test_a_process_that_dies_each_time_is_left_alone_for_longer_and_longer(
    tmp_path: Path, record: MakeRecord, points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_PROGRAM", "raise SystemExit(7)")
    started: list[float] = []
    popen = subprocess.Popen

    def start(*given: Any, **named: Any) -> Any:
        started.append(time.monotonic())
        return popen(*given, **named)

    monkeypatch.setattr(subprocess, "Popen", start)
    recorder = Recorder(tmp_path / "run", record("http://127.0.0.1:9"), apart=True)
    recorder.append(points(1, 3))
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.2)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        recorder.start_shipping()
        time.sleep(0.01)
    assert 3 <= len(started) <= 6
    assert started[-1] - started[-2] > started[1] - started[0]
    report = recorder.close("FINISHED", timeout_seconds=0.5)
    assert report.error == "the shipping process ended with 7"
    assert report.unsent > 2


@pytest.mark.parametrize("apart", [True, False], ids=["process", "thread"])
def test_where_nothing_can_be_started_training_goes_on_and_what_it_measures_is_safe(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, apart: bool, stored: Stored
) -> None:
    desk = Desk(tmp_path / "run", record(sqlite_uri), ships_apart=apart)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) if apart else RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(*((subprocess, "Popen") if apart else (threading.Thread, "start")), refuse)
        desk.ship()
        assert desk.record([Reading(1, 1, {"train/loss": 0.5})])
        assert "could not be started" in str(desk._recorder.report().error)
    report = desk.close("FINISHED", None, 120)
    assert (report["unsent"], report["error"]) == (0, None)
    assert stored(sqlite_uri, report["run_id"]) == [("train/loss", 1, 0.5, 1)]


def test_where_files_cannot_be_locked_one_process_does_it_all(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    recorder = Recorder(tmp_path / "run", record(sqlite_uri), apart=True)
    assert not isinstance(recorder._shipper, ShipperApart)


STARTER = """
import sys, time
from pathlib import Path
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
recorder = Recorder(Path({folder!r}), RunRecord("r", "n", "http://127.0.0.1:9", "e"), apart=True)
recorder.start_shipping()
print(recorder._shipper._process.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "ends"),
    [
        ("time.sleep(1000)", lambda process: process.send_signal(signal.SIGKILL)),
        ("sys.exit(0)", lambda process: None),
        # a child that lives on holds the pipe open, as a loader's worker may for a while
        (
            "import os; os.fork() or time.sleep(30); time.sleep(1000)",
            lambda process: process.send_signal(signal.SIGKILL),
        ),
    ],
)
def test_it_ends_with_the_process_that_started_it(
    tmp_path: Path,
    run_python: Callable[[str], "subprocess.Popen[str]"],
    then: str,
    ends: Callable[["subprocess.Popen[str]"], None],
) -> None:
    process = run_python(STARTER.format(folder=str(tmp_path / "run"), then=then))
    assert process.stdout is not None
    shipping = psutil.Process(int(process.stdout.readline()))
    time.sleep(0.5)
    forked = [child for child in psutil.Process(process.pid).children() if child.pid != shipping.pid] if ends else []
    ends(process)
    process.wait(60)
    deadline = time.monotonic() + 60
    while shipping.is_running() and shipping.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)
    for child in forked:
        child.kill()


def test_a_ctrl_c_in_the_terminal_is_not_for_it(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri), apart=True)
    recorder.append(points(1, 3))
    recorder.start_shipping()
    deadline = time.monotonic() + 120
    while recorder.report().unsent:  # it is well under way
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process_of(recorder).pid, signal.SIGINT)
    report = recorder.close("KILLED", "Ctrl-C", timeout_seconds=120)
    assert (report.unsent, report.error) == (0, None)
