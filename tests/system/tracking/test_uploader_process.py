"""Uploading from a process of its own, of one record or of many: it ends with its starter, and dies without a loss."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.cluster.run_coordinator import RunCoordinator
from paceline.tracking import backoff, uploader_process
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadReport
from paceline.tracking.uploader_process import UploaderProcess
from paceline.tracking.uploads import RecordUpload
from support.tracking.recording import DEAD, MakeRecord, client_of, points, runs_of, steps_of, stored, until


def uploads_of(recorder: RunRecorder) -> UploaderProcess:
    assert isinstance(recorder._uploader, RecordUpload)
    assert isinstance(recorder._uploader._uploads, UploaderProcess)
    return recorder._uploader._uploads


def process_in(uploads: UploaderProcess) -> psutil.Process:
    until(lambda: uploads._process is not None and uploads.trouble is None)
    assert uploads._process is not None
    return psutil.Process(uploads._process.pid)


def process_of(recorder: RunRecorder) -> psutil.Process:
    return process_in(uploads_of(recorder))


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
    until(lambda: recorder.report().error is None)
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
    recorder.start_uploading()
    until(lambda: len(waits) >= 4)
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
        until(lambda: coordinator._recorder.report().error)
    report = coordinator.close("FINISHED", None, 120)
    assert (report["unsent"], report["error"]) == (0, None)
    assert stored(sqlite_uri, report["run_id"]) == [("train/loss", 1, 0.5, 1)]


def test_where_files_cannot_be_locked_one_process_does_it_all(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert uploads_of(RunRecorder(tmp_path / "locks", record(DEAD), apart=True))

    def refuse(descriptor: int, kind: int) -> None:
        raise refused(errno.ENOSYS)

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert isinstance(RunRecorder(tmp_path / "run", record(DEAD), apart=True)._uploader, MlflowUploader)


STARTER = """
import sys, time
from pathlib import Path
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
recorder = RunRecorder(Path({folder!r}), RunRecord("r", "n", "http://127.0.0.1:9", "e"), apart=True)
recorder.start_uploading()
while (process := recorder._uploader._uploads._process) is None:
    time.sleep(0.01)
print(process.pid, flush=True)
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


# Many records


@pytest.fixture
def uploads() -> Iterator[UploaderProcess]:
    shared = UploaderProcess()
    yield shared
    shared.stop()


class Sweep:
    """Records of a sweep and of its trials, which share a process."""

    def __init__(self, folder: Path, uploads: UploaderProcess, about: RunRecord) -> None:
        self.about, self.uploads, self._folder = about, uploads, folder
        self.own = RunRecorder(folder / "sweep", about, is_new=True, uploads=uploads)
        self.own.start_uploading()
        self.reports: list[UploadReport] = []

    def trial(self, number: int) -> RunRecorder:
        """A new record of a trial, which is being sent."""
        name = f"{self.about.run_id}/{number}"
        about = replace(self.about, run_id=name, name=str(number), parent=self.about.run_id, picture=False)
        trial = RunRecorder(self._folder / str(number), about, is_new=True, uploads=self.uploads)
        trial.start_uploading()
        trial.append(points(1, 6))
        return trial

    def close(self, trial: RunRecorder) -> None:
        """Have a trial's record closed; its report comes in time."""
        trial.hand_over("FINISHED")
        self.uploads.finish(trial._folder, self.about.uri, 120.0, self.reports.append, trial.is_new)

    def all_are_in_mlflow(self, trials: int) -> bool:
        """True if there is one run of each trial, with all of its points."""
        reports = [*self.reports, self.own.close("FINISHED", timeout_seconds=240)]
        assert [(report.unsent, report.error) for report in reports] == [(0, None)] * (trials + 1)
        assert sorted(runs_of(self.about)) == sorted(str(report.run_id) for report in reports)
        return all(steps_of(self.about.uri, each.run_id) == list(range(1, 6)) for each in self.reports)


def test_records_of_a_sweep_share_a_process(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess
) -> None:
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    process = process_in(uploads)
    slow = sweep.trial(0)
    until(lambda: slow.report().run_id and not slow.report().unsent)  # while it is running
    for number in range(1, 4):
        sweep.close(sweep.trial(number))
    slow.set_tags({"late": "tag"})
    sweep.close(slow)
    until(lambda: len(sweep.reports) == 4)
    assert sweep.all_are_in_mlflow(4)
    assert client_of(sqlite_uri).get_run(str(slow.report().run_id)).data.tags["late"] == "tag"
    assert process_in(uploads) == process
    descriptors = process.num_fds()
    for number in range(4, 24):
        sweep.close(sweep.trial(number))
    until(lambda: len(sweep.reports) == 24)
    assert process.num_fds() < descriptors + 10
    uploads.stop()
    assert not process.is_running()


def test_killed_process_gets_all_open_records_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess
) -> None:
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    running = sweep.trial(0)
    trials = [sweep.trial(number) for number in range(1, 13)]
    for trial in trials[:6]:
        sweep.close(trial)
    until(lambda: sweep.reports)  # some are sent, one or the other is just being created
    process_in(uploads).kill()
    for trial in trials[6:]:
        sweep.close(trial)
    sweep.close(running)
    until(lambda: len(sweep.reports) == 13)
    assert sweep.all_are_in_mlflow(13)


def test_stopped_process_holds_up_nobody(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess
) -> None:
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    trial = sweep.trial(0)
    process = process_in(uploads)
    until(lambda: (tmp_path / "sweep" / CURSOR_FILE).exists())
    process.suspend()
    for _ in range(2000):  # far more than a pipe takes
        uploads.begin(trial._folder, sqlite_uri)
    sweep.close(trial)
    process.resume()
    until(lambda: len(sweep.reports) == 1)
    assert sweep.all_are_in_mlflow(1)


def test_abandoned_record_is_not_reported(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess
) -> None:
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    process_in(uploads).suspend()
    first, second = sweep.trial(0), sweep.trial(1)
    sweep.close(first)
    uploads.abandon(first._folder)
    sweep.close(second)
    process_in(uploads).resume()
    until(lambda: sweep.reports)
    assert len(sweep.reports) == 1
    assert client_of(sqlite_uri).get_run(str(sweep.reports[0].run_id)).info.run_name == "1"


def test_process_in_which_something_prints_is_understood(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = """print('[' * 99999); print('{"folder": "f", "report": {}}'); print('hello', end='', flush=True)"""
    monkeypatch.setattr(uploader_process, "_PROGRAM", f"{printing}\n{uploader_process._PROGRAM}")
    monkeypatch.setattr(sys, "path", [*sys.path, Path("strange")])
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    sweep.close(sweep.trial(0))
    until(lambda: sweep.reports)
    assert sweep.all_are_in_mlflow(1)


def test_trouble_of_any_kind_while_the_process_starts_is_reported_and_tried_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, began = UploaderProcess._give_all_to, list[psutil.Process]()

    def fails_at_first(self: UploaderProcess, process: "subprocess.Popen[bytes]") -> Any:
        began.append(psutil.Process(process.pid))
        if len(began) == 1:
            raise RuntimeError("can't start new thread")
        return give(self, process)

    monkeypatch.setattr(UploaderProcess, "_give_all_to", fails_at_first)
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    until(lambda: began)
    until(lambda: "can't start new thread" in str(sweep.own.report().error) or len(began) == 2)
    sweep.close(sweep.trial(0))
    until(lambda: sweep.reports)
    assert sweep.all_are_in_mlflow(1)
    assert not began[0].is_running()


def test_record_that_is_gone_is_reported_and_costs_no_other(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, uploads: UploaderProcess
) -> None:
    sweep = Sweep(tmp_path, uploads, record(sqlite_uri))
    uploads.begin(tmp_path / "gone", sqlite_uri)
    uploads.finish(tmp_path / "gone", sqlite_uri, 10.0, sweep.reports.append)
    until(lambda: sweep.reports)
    assert "No such file" in str(sweep.reports.pop().error)
    sweep.close(sweep.trial(0))
    until(lambda: sweep.reports)
    assert sweep.all_are_in_mlflow(1)
