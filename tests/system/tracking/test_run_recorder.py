"""The recorder on an MLflow database: one run, each point once, whatever dies, is lost or is refused in between."""

import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import backoff, metrics, mlflow_connection, mlflow_run, mlflow_uploader
from paceline.tracking import run_recorder as module
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_connection import Connection
from paceline.tracking.mlflow_probe import cause_text, silence_of
from paceline.tracking.mlflow_run import MlflowRun
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder, has_ended
from paceline.tracking.sync import sync
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, UploadReport, unsent
from paceline.tracking.upload_threads import UploadThreads
from support.logged import Logged
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.journals import numbers
from support.tracking.markdown import blocks_of, table_of
from support.tracking.recording import (
    DEAD,
    MakeRecord,
    artifacts_of,
    as_stored,
    client_of,
    points,
    runs_of,
    steps_of,
    stored,
    until,
)


def run_of(uri: str, report: UploadReport) -> Any:
    """What MLflow has of a reported run, all of which has arrived."""
    assert (report.unsent, report.error) == (0, None)
    return client_of(uri).get_run(str(report.run_id))


def all_sent(recorder: RunRecorder) -> bool:
    report = recorder.report()
    return bool(report.run_id) and not report.unsent


def test_a_finished_run_has_everything_in_mlflow(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    params = {f"key.{number}": number for number in range(150)}
    tags = {metrics.COMMAND: "paceline train a.yaml", **{f"tag.{number}": str(number) for number in range(120)}}
    about = record(sqlite_uri, params=params, tags=tags, artifacts={"config.yaml": "name: a\n"})
    recorder = RunRecorder(tmp_path / "run", about)
    written = [*points(1, 1301), *points(1, 1301, key="lr"), *points(100, 1301, 100, key="val/loss")]
    assert recorder.append(written) == len(written)
    recorder.add_artifact("deep/report.md", b"# report")
    report = recorder.close("FINISHED")

    run = run_of(sqlite_uri, report)
    page = f"#/experiments/{report.experiment_id}/runs/{report.run_id}?workflowType=machine_learning"
    assert report.url == f"http://127.0.0.1:5000/{page}"
    assert stored(sqlite_uri, report.run_id) == as_stored(written) == as_stored(recorder.history())
    assert (run.info.status, run.info.run_name) == ("FINISHED", "mnist-cnn")
    assert run.info.end_time is not None
    assert run.data.params == {key: str(value) for key, value in params.items()}
    assert {key: run.data.tags[key] for key in about.tags} == about.tags
    note = run.data.tags[metrics.NOTE]
    assert ["val/loss", "0.0007692", "0.0007692", "1300"] in table_of(note)
    assert blocks_of(note) == ["paceline train a.yaml"]
    assert artifacts_of(sqlite_uri, report.run_id) == {"config.yaml", "deep", "loss_curve.png"}
    folder = Path(str(run.info.artifact_uri).removeprefix("file://"))
    assert folder.is_relative_to(tmp_path / "mlruns")
    assert (folder / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "deep" / "report.md").read_text() == "# report"
    assert recorder.close("KILLED") == report


@pytest.mark.parametrize(
    ("run_id", "name", "shown", "status", "reason"),
    [
        ("20261121-180731-548a55", "n" * 300, "n" * 236 + " 180731-548a55", "FAILED", "rank 1 died"),
        ("20261121-180731-548a55/0007", "0007 lr=0.1", "0007 lr=0.1", "KILLED", None),
    ],
)
def test_runs_of_one_name_are_told_apart_and_have_their_status_with_its_reason(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, run_id: str, name: str, shown: str, status: Any, reason: Any
) -> None:
    report = RunRecorder(tmp_path, record(sqlite_uri, run_id=run_id, name=name)).close(status, reason)
    run = run_of(sqlite_uri, report)
    assert (run.info.run_name, run.data.tags[metrics.NAME]) == (shown, name)
    assert (run.info.status, run.data.tags.get(metrics.STATUS_REASON)) == (status, reason)
    assert run.info.end_time is not None


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the runs that were looked for in MLflow, which reads all runs of the experiment for that."""
    found: list[str] = []
    find = Connection.find

    def finds(self: Connection, record: RunRecord, run_id: str) -> Any:
        found.append(run_id)
        return find(self, record, run_id)

    monkeypatch.setattr(Connection, "find", finds)
    return found


def test_only_a_run_that_may_be_in_mlflow_is_looked_for(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, searched: list[str]
) -> None:
    about = record(sqlite_uri)
    first = RunRecorder(tmp_path / "run", about, is_new=True)
    assert run_of(sqlite_uri, first.close("KILLED"))
    assert searched == []
    (tmp_path / "run" / CURSOR_FILE).unlink()
    resumed = RunRecorder(tmp_path / "run", about, is_new=True)  # the folder tells otherwise
    assert run_of(sqlite_uri, resumed.close("KILLED"))
    shutil.rmtree(tmp_path / "run")
    begun_before = RunRecorder(tmp_path / "run", about)
    assert run_of(sqlite_uri, begun_before.close("FINISHED"))
    assert searched == [about.run_id] * 2
    assert len(runs_of(about)) == 1


def test_a_run_that_was_created_without_an_answer_is_found_at_the_next_attempt(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create, created = mlflow_run._create, list[str]()

    def unanswered(*given: Any) -> Any:
        created.append(create(*given).info.run_id)
        raise ConnectionError("no answer")

    monkeypatch.setattr(mlflow_run, "_create", unanswered)
    about = record(sqlite_uri)
    recorder = RunRecorder(tmp_path / "run", about, is_new=True)
    recorder.start_uploading()
    until(lambda: recorder.report().error)
    report = recorder.close("FINISHED")
    assert runs_of(about) == created == [report.run_id]
    assert searched == [about.run_id]


def test_more_runs_than_mlflow_has_database_connections_are_created_at_once(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, logged: Logged
) -> None:
    abouts = [record(sqlite_uri, run_id=f"at-once-{number}") for number in range(40)]
    recorders = [RunRecorder(tmp_path / about.run_id, about, is_new=True) for about in abouts]
    for recorder in recorders:
        recorder.start_uploading()
    reports = [recorder.close("FINISHED") for recorder in recorders]
    assert {(report.unsent, report.error) for report in reports} == {(0, None)}
    assert not logged.records


@pytest.mark.parametrize("was_begun", [False, True])
def test_a_trial_that_is_handed_over_is_sent_from_its_folder(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, searched: list[str], was_begun: bool
) -> None:
    parent, uploads = record(sqlite_uri), UploadThreads()
    sweep = RunRecorder(tmp_path / "sweep", parent, is_new=True, uploads=uploads)
    sweep.start_uploading()
    until(lambda: all_sent(sweep))
    about = record(sqlite_uri, run_id=f"{parent.run_id}/0", parent=parent.run_id, picture=False)
    trial = RunRecorder(tmp_path / "trial", about, is_new=True, uploads=uploads)
    trial.append(points(1, 3))
    if was_begun:
        trial.start_uploading()
        until(lambda: all_sent(trial))
    trial.append(points(3, 6))
    trial.hand_over("FAILED", "it was unlucky")
    assert trial._journal._descriptor is None
    assert len(runs_of(parent)) == 1 + was_begun

    uploads.stop()
    reports: list[UploadReport] = []
    others = UploadThreads()
    others.finish(tmp_path / "trial", sqlite_uri, 60.0, reports.append, trial.is_new)
    until(lambda: reports)
    run = run_of(sqlite_uri, reports[0])
    assert (run.info.status, run.data.tags[metrics.STATUS_REASON]) == ("FAILED", "it was unlucky")
    assert len(runs_of(parent)) == 2
    assert steps_of(sqlite_uri, reports[0].run_id) == list(range(1, 6))
    assert searched == [about.run_id] * was_begun
    others.stop()


def test_a_thread_that_waits_for_the_database_in_vain_says_so(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_connection, "TURN_SECONDS", 0.05)
    client: Any = mlflow_connection.connect(sqlite_uri)
    entered, over = threading.Semaphore(0), threading.Event()

    def get_run(run_id: str) -> bool:
        entered.release()
        return over.wait(60)

    monkeypatch.setattr(client._client, "get_run", get_run)
    threads = [threading.Thread(target=client.get_run, args=("1",)) for _ in range(mlflow_connection.DATABASE_THREADS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert entered.acquire(timeout=60)
    with pytest.raises(TimeoutError, match="has not answered"):
        client.get_run("2")
    over.set()
    for thread in threads:
        thread.join()
    assert client.get_run("3") is True


def test_a_resumed_run_continues_in_the_same_mlflow_run(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri, params={"workers": 2, "lr": 0.1}))
    recorder.append(points(1, 4))
    failed = recorder.close("FAILED", "rank 1 died")
    assert run_of(sqlite_uri, failed).data.tags[metrics.STATUS_REASON] == "rank 1 died"

    changed = record(sqlite_uri, params={"workers": 4, "lr": 0.1, "new": 1})
    resumed = RunRecorder(tmp_path / "run", changed)
    resumed.start_uploading()
    until(lambda: run_of(sqlite_uri, failed).info.status == "RUNNING")
    resumed.append(points(1, 7))
    finished = resumed.close("FINISHED")

    assert runs_of(changed) == [finished.run_id] == [failed.run_id]
    assert steps_of(sqlite_uri, finished.run_id) == [1, 2, 3, 4, 5, 6]
    run = run_of(sqlite_uri, finished)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"workers": "2", "lr": "0.1", "new": "1"}
    assert run.data.tags[metrics.CHANGED_PARAMS] == "workers: 2 -> 4"
    assert run.data.tags[metrics.STATUS_REASON] == ""


# Killed, deleted, lost


KILLED_RUN = """
import sys, time
from pathlib import Path
from paceline.tracking import mlflow_uploader
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
mlflow_uploader.INTERVAL_SECONDS = 0.01
recorder = RunRecorder(Path({folder!r}), RunRecord({run_id!r}, "mnist-cnn", {uri!r}, {experiment!r}))
recorder.start_uploading()
step = 0
while True:
    step += 1
    recorder.append([MetricPoint(key, 1 / step, step, int(time.time() * 1000)) for key in ("train/loss", "lr")])
    print(step, recorder.report().run_id, flush=True)
    time.sleep(0.005)
"""


def kill_once_it_uploads(process: "subprocess.Popen[str]", steps_more: int) -> int:
    """Kill it with SIGKILL some steps after MLflow has the run; the last step that it acknowledged."""
    shipped = 0
    assert process.stdout is not None
    for line in process.stdout:
        step, run_id = line.split()
        shipped += run_id != "None"
        if shipped > steps_more:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return int(step)
    raise AssertionError("the run ended by itself")


def test_a_process_killed_in_mid_run_loses_and_doubles_nothing(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, run_python: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    about = record(sqlite_uri)
    names = {"folder": str(tmp_path / "run"), "uri": sqlite_uri, "run_id": about.run_id, "experiment": about.experiment}
    acknowledged = kill_once_it_uploads(run_python(KILLED_RUN.format(**names)), steps_more=40)

    recorder = RunRecorder(tmp_path / "run", about)
    before = {(point.key, point.step) for point in recorder.history()}
    assert {("train/loss", acknowledged), ("lr", acknowledged)} <= before
    replayed = [MetricPoint(key, -1.0, step, 1) for step in range(1, acknowledged + 10) for key in ("train/loss", "lr")]
    recorder.append(replayed)
    report = recorder.close("FINISHED")

    assert runs_of(about) == [report.run_id]
    found = stored(sqlite_uri, report.run_id)
    assert found == as_stored(recorder.history())
    assert len(found) == len({(key, step) for key, step, _, _ in found}) == 2 * (acknowledged + 9)
    assert all(value > 0 for _, step, value, _ in found if step <= acknowledged)


def test_a_run_that_is_deleted_in_mlflow_meanwhile_gets_everything_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    about = record(sqlite_uri)
    recorder = RunRecorder(tmp_path / "run", about)
    recorder.append(points(1, 10))
    recorder.start_uploading()
    until(lambda: all_sent(recorder))
    first = recorder.report().run_id
    client_of(sqlite_uri).delete_run(str(first))
    recorder.append(points(10, 20))
    until(lambda: recorder.report().run_id != first and all_sent(recorder))
    report = recorder.close("FINISHED")
    assert runs_of(about) == [report.run_id] != [first]
    assert stored(sqlite_uri, report.run_id) == as_stored(points(1, 20))
    assert metrics.NOT_RECORDED not in run_of(sqlite_uri, report).data.tags


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_record_that_is_given_up_while_its_run_is_created_has_one_run(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, is_handed_over: bool
) -> None:
    """MLflow was too slow for the first uploader, whose thread still waits for it when the next one begins."""
    create, is_creating, may_create = mlflow_run._create, threading.Event(), threading.Event()

    def create_slowly(*arguments: Any) -> Any:
        if not is_creating.is_set():
            is_creating.set()
            assert may_create.wait(60)
        return create(*arguments)

    monkeypatch.setattr(mlflow_run, "_create", create_slowly)
    about = record(sqlite_uri)
    uploads = UploadThreads() if is_handed_over else None
    first = RunRecorder(tmp_path / "run", about, is_new=is_handed_over, uploads=uploads)
    first.append(points(1, 11))
    first.start_uploading()
    assert is_creating.wait(60)
    if uploads is not None:
        first.hand_over("FINISHED")
        uploads.stop()
    else:
        assert first.close("FINISHED", timeout_seconds=0.1).unsent > 0
    again: list[UploadReport] = []
    # whoever takes it for a new one learns better from the folder, and from the thread that it waits for
    before = mlflow_uploader._at_work[tmp_path / "run"]
    UploadThreads().finish(tmp_path / "run", sqlite_uri, 60.0, again.append, is_new=True)
    until(lambda: mlflow_uploader._at_work[tmp_path / "run"] is not before)
    may_create.set()
    until(lambda: again)
    for thread in threading.enumerate():
        if thread.name == "paceline-upload":
            thread.join(60)
    run = run_of(sqlite_uri, again[0])
    assert runs_of(about) == [run.info.run_id]
    assert stored(sqlite_uri, run.info.run_id) == as_stored(points(1, 11))
    assert run.info.status == "FINISHED"
    assert first._journal._descriptor is None, "thousands of trials would have as many open files"


@pytest.mark.parametrize("again", [2, 9], ids=["shorter than before", "longer than before"])
def test_a_journal_that_has_lost_its_end_is_sent_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, again: int
) -> None:
    folder, about = tmp_path / "run", record(sqlite_uri, picture=False)
    recorder = RunRecorder(folder, about)
    recorder.append(points(1, 6))
    assert recorder.close("FINISHED").unsent == 0
    file = folder / JOURNAL_FILE
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:2]))
    assert unsent(folder) == 2
    recorder = RunRecorder(folder, about)  # as a resumed run does
    recorder.append(points(6, 6 + again))
    recorder.conclude("FAILED", "it was unlucky")
    recorder.abandon()
    report = sync(folder)
    assert run_of(sqlite_uri, report).info.status == "FAILED"
    assert runs_of(about) == [report.run_id]
    assert steps_of(sqlite_uri, report.run_id) == list(range(1, 6 + again))
    assert sync(folder).sent == 0


@pytest.mark.parametrize("change", [None, {"offset": 10**6}, {"experiment_id": "77"}], ids=str)
def test_a_damaged_cursor_is_started_over(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, change: dict[str, Any] | None
) -> None:
    recorder = RunRecorder(tmp_path, record(sqlite_uri, picture=False))
    recorder.append(points(1, 6))
    recorder.close("FINISHED")
    file = tmp_path / CURSOR_FILE
    before = UploadCursor.load(file)
    file.write_text("{broken" if change is None else json.dumps({**json.loads(file.read_bytes()), **change}))
    report = sync(tmp_path)
    assert (report.unsent, report.error) == (0, None)
    after = UploadCursor.load(file)
    assert (after.run_id, after.experiment_id) == (before.run_id, before.experiment_id)
    assert steps_of(sqlite_uri, after.run_id) == [1, 2, 3, 4, 5]


def test_a_cursor_that_cannot_be_written_keeps_nothing_from_mlflow(
    sqlite_uri: str, record: MakeRecord, tmp_path: Path, logged: Logged
) -> None:
    (tmp_path / CURSOR_FILE).mkdir()
    recorder = RunRecorder(tmp_path, record(sqlite_uri, picture=False))
    recorder.append(points(1, 6))
    assert recorder.close("FINISHED", timeout_seconds=240).unsent == 0
    warned = [
        each.args[0]
        for each in logged.records
        if each.name == mlflow_uploader.__name__ and isinstance(each.args, tuple)
    ]
    assert {type(each) for each in warned} == {mlflow_uploader.FolderTrouble}  # and none of MLflow
    assert str(tmp_path) in str(warned[0])
    (tmp_path / CURSOR_FILE).rmdir()
    assert sync(tmp_path).unsent == 0


@pytest.mark.parametrize("at_once", [True, False], ids=["replaced", "removed"])
def test_a_database_that_is_replaced_meanwhile_gets_everything(
    tmp_path: Path,
    prepared_database: Path,
    sqlite_uri: str,
    record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    def start(path: Path) -> "subprocess.Popen[bytes] | None":
        if path.exists():
            return None
        return subprocess.Popen(["cp", str(prepared_database), str(path)], stderr=subprocess.PIPE)

    monkeypatch.setattr(mlflow_uploader.mlflow_database, "start_creating", start)
    about, other = record(sqlite_uri, params={"lr": 0.1}), record(sqlite_uri, run_id="other")
    recorders = [RunRecorder(tmp_path / each.run_id, each) for each in (about, other)]
    for recorder in recorders:
        recorder.append(points(1, 50))
        recorder.start_uploading()
    until(lambda: all(map(all_sent, recorders)))
    before = [str(each.report().run_id) for each in recorders]
    (tmp_path / "mlflow.db").unlink()
    if at_once:
        shutil.copy(prepared_database, tmp_path / "mlflow.db")
    until(lambda: all(each.report().run_id not in (None, "", *before) for each in recorders))
    for recorder in recorders:
        recorder.append(points(50, 100))
    reports = [each.close("FINISHED") for each in recorders]
    assert [(report.unsent, report.error) for report in reports] == [(0, None)] * 2
    assert set(runs_of(about)) == {report.run_id for report in reports}
    for report in reports:
        assert stored(sqlite_uri, report.run_id) == as_stored(points(1, 100))
    with sqlite3.connect(tmp_path / "mlflow.db") as opened:  # as another process sees it
        assert opened.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert opened.execute("SELECT count(*) FROM params").fetchone() == (1,)
    files = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    assert not [file for file in files if str(tmp_path) in file and "(deleted)" in file], "the old file is still open"


# Refused, locked, missing


def test_items_that_mlflow_refuses_do_not_hold_up_the_rest(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri, params={"bad key!": 1, "good": 2}))
    bad = [MetricPoint("no?such&key", 1.0, 2, 2), MetricPoint("x" * 300, 1.0, 3, 3)]
    infinite = [MetricPoint("val/loss", math.inf, 3, 5), MetricPoint("grad_norm", -math.inf, 3, 5)]
    recorder.append([*points(1, 40), *bad, *infinite, *points(40, 80), MetricPoint("lr", math.nan, 3, 5)])
    recorder.set_tags({"also/fine": "1", "not?fine": "2"})
    report = recorder.close("FAILED", "diverged")
    run = run_of(sqlite_uri, report)
    [not_a_number, *found] = stored(sqlite_uri, report.run_id)
    assert found == as_stored(points(1, 80))
    assert not_a_number[:2] == ("lr", 3)
    assert math.isnan(not_a_number[2])
    assert run.data.params == {"bad key_": "1", "good": "2"}
    assert run.data.tags["also/fine"] == "1"
    refused = run.data.tags[metrics.NOT_RECORDED]
    assert [key for key in ("no?such&key", "x" * 100, "not?fine", "also/fine") if key in refused] == [
        *("no?such&key", "x" * 100, "not?fine")
    ]
    assert {"val/loss", "inf", "3"} <= set(run.data.tags[metrics.DIVERGED].split())


def test_a_locked_database_delays_nothing_but_the_upload(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path / "run", record(f"{sqlite_uri}?timeout=0.2"))
    lock = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    recorder.start_uploading()
    recorder.append(points(1, 100))
    assert len(list(recorder.history())) == 99
    until(lambda: "locked" in str(recorder.report().error))
    lock.execute("ROLLBACK")
    lock.close()
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert stored(sqlite_uri, report.run_id) == as_stored(points(1, 100))


def test_a_missing_database_is_created_while_points_come_in(
    tmp_path: Path, prepared_database: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    once_told = f"until [ -e {go} ]; do sleep 0.05; done; cp {prepared_database} mlflow.db"
    creation: list[Path] = []

    def start(path: Path) -> "subprocess.Popen[bytes]":
        creation.append(path)
        return subprocess.Popen(["sh", "-c", once_told], cwd=path.parent, stderr=subprocess.PIPE)

    monkeypatch.setattr(mlflow_uploader.mlflow_database, "start_creating", start)
    recorder = RunRecorder(tmp_path / "run", record(f"sqlite:///{tmp_path}/mlflow.db"))
    recorder.start_uploading()
    assert recorder.append(points(1, 3)) == 2
    go.touch()
    assert recorder.close("FINISHED").unsent == 0
    assert creation == [tmp_path / "mlflow.db"]


def test_a_database_that_cannot_be_created_is_an_error_in_the_report(tmp_path: Path, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path / "run", record(f"sqlite:///{tmp_path}/nowhere/mlflow.db"))
    report = recorder.close("FAILED", "early", timeout_seconds=0.5)
    assert report.run_id is report.url is None
    assert report.unsent == 2
    assert str(report.error).startswith(FileNotFoundError.__name__)


# Nobody answers


@pytest.mark.parametrize(("apart", "is_early"), [(True, False), (False, True)])
def test_the_end_is_waited_for_no_longer_once_told_so(
    tmp_path: Path,
    proxy: FaultyProxy,
    record: MakeRecord,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
    apart: bool,
    is_early: bool,
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 60.0)  # a server on a busy machine may take a second to answer
    proxy.order("sleep", "experiments/get", 1000)  # and not what asks whether the server is there
    recorder = RunRecorder(tmp_path / "run", record(proxy.uri), apart)
    recorder.append(points(1, 3))
    recorder.start_uploading()
    if is_early:
        recorder.stop_waiting()
    else:
        threading.Timer(0.3, recorder.stop_waiting).start()
    report = recorder.close("FINISHED", timeout_seconds=300)  # the test itself would be given up before
    assert report.error == module.STOPPED_WAITING
    assert report.unsent >= 4
    assert has_ended(tmp_path / "run")
    assert "paceline.tracking.uploader_process" not in {each.name for each in logged.records}


def test_the_end_does_not_wait_for_an_mlflow_that_has_never_answered(tmp_path: Path, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path / "run", record(DEAD), apart=True)
    recorder.append([MetricPoint("lr", 1.0, 1, 1)])  # which needs no picture
    recorder.start_uploading()
    report = recorder.close("FINISHED", timeout_seconds=300.0)  # the test itself would be given up before
    causes = (cause_text(ConnectionRefusedError(111, "Connection refused")), silence_of(DEAD, 1.0))
    assert report.error in causes
    assert report.unsent >= 3  # the point, the note and the status


def test_an_mlflow_that_has_never_answered_is_in_the_report_and_not_in_the_log(
    tmp_path: Path, record: MakeRecord, logged: Logged, server_uri: str, sqlite_uri: str
) -> None:
    assert silence_of(server_uri, 3.0) is silence_of(sqlite_uri, 1.0) is None
    recorder = RunRecorder(tmp_path / "run", record(DEAD))
    recorder.start_uploading()
    until(lambda: recorder.report().error)
    assert recorder.report().error == cause_text(ConnectionRefusedError(111, "Connection refused"))
    assert not logged.records
    recorder.abandon()


# Files


def test_trouble_with_artifacts_neither_slows_nor_speaks_for_the_metrics(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    opened: list[object] = []
    open_run = MlflowRun.open

    def broken(*given: object) -> None:
        tried.append(given)
        raise OSError("bucket is gone")

    def opens(*given: Any) -> Any:
        opened.append(given)
        return open_run(*given)

    monkeypatch.setattr(MlflowRun, "open", opens)
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri, artifacts={"config.yaml": "name: a"}))
    with monkeypatch.context() as patched:
        patched.setattr(backoff, "LONGEST_SECONDS", 1000.0)
        patched.setattr(backoff, "FIRST_SECONDS", 1000.0)
        patched.setattr(MlflowRun, "log_artifact", broken)
        recorder.start_uploading()
        until(lambda: tried)
        for step in (1, 2, 3):
            recorder.append(points(step, step + 1))
            until(lambda: recorder.report().unsent == 1)  # the file
        assert (len(tried), len(opened)) == (1, 1)
        assert "bucket is gone" in str(recorder.report().error)
        report = recorder.close("FINISHED", timeout_seconds=1)  # tries at once
    assert report.unsent == 2  # config.yaml and loss_curve.png
    assert len(tried) > 1
    assert len(stored(sqlite_uri, report.run_id)) == 3
    assert sync(tmp_path / "run").unsent == 0
    assert artifacts_of(sqlite_uri, report.run_id) == {"config.yaml", "loss_curve.png"}


def test_a_missing_file_is_named_and_holds_up_nothing(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    artifacts = {"config.yaml": "name: a", "gone.txt": "gone"}
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri, artifacts=artifacts))
    (tmp_path / "run" / "artifacts" / "gone.txt").unlink()
    recorder.append(points(1, 5))
    report = recorder.close("FINISHED", timeout_seconds=240)
    assert "gone.txt" in run_of(sqlite_uri, report).data.tags[metrics.NOT_RECORDED]
    assert artifacts_of(sqlite_uri, report.run_id) == {"config.yaml", "loss_curve.png"}
    again = sync(tmp_path / "run")
    assert (again.sent, again.unsent, again.error) == (0, 0, None)


# A journal with two writers


APPEND = """
import sys
from pathlib import Path
from paceline.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(200):
    journal.append([("own", {"v": number})] * 3)
"""


def test_two_processes_that_append_at_once_tear_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    both = [subprocess.Popen([sys.executable, "-c", APPEND, str(path)]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    found = numbers(Journal(path))
    assert [number for number, _ in found] == list(range(1, 1201))
    assert sorted(value for _, value in found) == sorted([*range(200)] * 6)
