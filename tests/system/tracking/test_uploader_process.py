"""Uploading from a process of its own, for a process that trains: it ends with that one, and dies without a loss."""

import errno
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.cluster.run_coordinator import RunCoordinator
from paceline.tracking import backoff, uploader_process
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.uploader_process import UploaderProcess
from support.tracking.recording import DEAD, MakeRecord, client_of, points, steps_of, stored, until


def process_of(recorder: RunRecorder) -> psutil.Process:
    uploader = recorder._uploader
    assert isinstance(uploader, UploaderProcess)
    assert uploader._process is not None
    return psutil.Process(uploader._process.pid)


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_everything_arrives_in_spite_of_a_ctrl_c_and_the_process_ends(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    about = record(sqlite_uri, artifacts={"config.yaml": "a: 1"})
    recorder = RunRecorder(tmp_path / "run", about, apart=True)
    recorder.start_uploading()
    recorder.start_uploading()
    process = process_of(recorder)
    assert sqlite_uri not in " ".join(process.cmdline())  # an address may hold a password
    own = os.nice(0)
    until(lambda: process.nice() == min(19, own + uploader_process.NICENESS))  # what it does once it ignores a Ctrl-C
    os.kill(process.pid, signal.SIGINT)
    recorder.append(points(1, 500))
    recorder.set_tags({"some": "tag"})
    report = recorder.close("FAILED", "it broke", timeout_seconds=200)
    assert (report.unsent, report.error) == (0, None)
    assert not process.is_running()
    assert len(stored(sqlite_uri, report.run_id)) == 499
    run = client_of(sqlite_uri).get_run(str(report.run_id))
    assert (run.info.status, run.data.tags["some"]) == ("FAILED", "tag")
    assert recorder.close("FINISHED") == report


def test_a_killed_process_is_reported_and_started_again_also_at_the_end(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri), apart=True)
    recorder.append(points(1, 50))
    recorder.start_uploading()
    first = process_of(recorder)
    first.kill()
    until(lambda: str(-signal.SIGKILL.value) in str(recorder.report().error))
    recorder.append(points(50, 100))

    def is_there_again() -> bool:
        recorder.start_uploading()  # as with each batch of readings
        return recorder.report().error is None

    until(is_there_again)
    second = process_of(recorder)
    assert second.pid != first.pid
    second.kill()
    report = recorder.close("FINISHED", timeout_seconds=240)
    assert (report.unsent, report.error) == (0, None)
    assert steps_of(sqlite_uri, report.run_id) == list(range(1, 100))


def test_a_process_that_dies_each_time_is_left_alone_for_longer_and_longer(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader_process, "_PROGRAM", "raise SystemExit(7)")
    waits: list[float] = []
    failed = backoff.Backoff.failed
    monkeypatch.setattr(backoff.Backoff, "failed", lambda self: (failed(self), waits.append(self.wait_seconds))[0])
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.1)
    recorder = RunRecorder(tmp_path / "run", record(DEAD), apart=True)
    recorder.append(points(1, 3))

    def has_died_four_times() -> bool:
        recorder.start_uploading()
        return len(waits) >= 4

    until(has_died_four_times)
    assert waits[3] > 3 * waits[0]  # doubled three times, less a random part of at most a half
    report = recorder.close("FINISHED", timeout_seconds=0.5)
    assert "7" in str(report.error)
    assert report.unsent > 2


@pytest.mark.parametrize("is_apart", [True, False], ids=["process", "thread"])
def test_where_nothing_can_be_started_points_are_safe_and_sent_at_the_end(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, is_apart: bool
) -> None:
    coordinator = RunCoordinator(tmp_path / "run", record(sqlite_uri), uploads_in_own_process=is_apart)

    def refuse(*_: Any, **__: Any) -> Any:
        raise refused(errno.EAGAIN) if is_apart else RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(*((subprocess, "Popen") if is_apart else (threading.Thread, "start")), refuse)
        coordinator.start_uploading()
        assert coordinator.record([MetricReading(1, 1, {"train/loss": 0.5})])
        assert coordinator._recorder.report().error
    report = coordinator.close("FINISHED", None, 120)
    assert (report["unsent"], report["error"]) == (0, None)
    assert stored(sqlite_uri, report["run_id"]) == [("train/loss", 1, 0.5, 1)]


def test_where_files_cannot_be_locked_one_process_does_it_all(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(RunRecorder(tmp_path / "locks", record(DEAD), apart=True)._uploader, UploaderProcess)

    def refuse(descriptor: int, kind: int) -> None:
        raise refused(errno.ENOSYS)

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not isinstance(RunRecorder(tmp_path / "run", record(DEAD), apart=True)._uploader, UploaderProcess)


STARTER = """
import sys, time
from pathlib import Path
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
recorder = RunRecorder(Path({folder!r}), RunRecord("r", "n", "http://127.0.0.1:9", "e"), apart=True)
recorder.start_uploading()
print(recorder._uploader._process.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "is_killed"),
    [
        ("time.sleep(1000)", True),
        ("sys.exit(0)", False),
        # a child that lives on holds the pipe open, as a loader's worker may for a while
        ("import os; child = os.fork(); child and print(child, flush=True); time.sleep(1000)", True),
    ],
    ids=["killed", "exit", "killed with a child"],
)
def test_it_ends_with_the_process_that_started_it(
    tmp_path: Path, run_python: Callable[[str], "subprocess.Popen[str]"], then: str, is_killed: bool
) -> None:
    process = run_python(STARTER.format(folder=str(tmp_path / "run"), then=then))
    assert process.stdout is not None
    shipping = psutil.Process(int(process.stdout.readline()))
    child = int(process.stdout.readline()) if "fork" in then else None
    if is_killed:
        process.kill()
    process.wait(60)
    until(lambda: not shipping.is_running() or shipping.status() == psutil.STATUS_ZOMBIE)
    if child:
        os.kill(child, signal.SIGKILL)
