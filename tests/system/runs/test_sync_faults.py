"""`paceline sync` beside another one, of copies, after losses, and with servers that refuse."""

import fcntl
import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as command
from paceline.runs import sync as syncing
from paceline.runs.alone import LOCK_FILE
from paceline.runs.sync import sync_folder
from paceline.storage.in_progress import nobody_works_on
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder, has_ended
from support.golden import Golden
from support.runs.records import NEWER, STEPS, ended_run, mlflow_runs, record, run_folder, states, steps_of, uri_of
from support.tracking.answering import answering
from support.tracking.recording import until


@pytest.fixture
def ended(storage: Path, database: Path) -> Path:
    """A run that has ended, and sent nothing."""
    return ended_run(storage, uri_of(database))


# Two at once


def test_of_two_at_once_one_sends_an_ended_run(
    storage: Path, database: Path, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, reports = syncing.sync, []

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(syncing, "sync", send)
        reports.append(sync_folder(storage))
        return send(*given)

    monkeypatch.setattr(syncing, "sync", meanwhile)
    assert states(sync_folder(storage)) == {NEWER: "complete"}
    ((other,),) = [report.records for report in reports]
    assert (other.state, other.sent, reports[0].is_complete) == ("in progress", 0, True)
    (run,) = mlflow_runs(uri_of(database)).values()
    assert steps_of(uri_of(database), run) == STEPS


def test_neither_a_newer_run_that_trains_nor_a_file_system_without_locks_is_an_obstacle(
    storage: Path, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def none(file: Any, kind: int) -> None:
        if str(getattr(file, "name", "")) == str(ended / "tracking" / LOCK_FILE):
            raise OSError(38, "Function not implemented")
        flock(file, kind)

    with nobody_works_on(storage / "mnist"):  # as a command does that trains
        monkeypatch.setattr(fcntl, "flock", none)
        assert states(sync_folder(storage)) == {NEWER: "complete"}


# Copies


def test_a_copy_of_a_running_run_closes_nothing(storage: Path, database: Path, tmp_path: Path) -> None:
    folder = run_folder(storage)
    recorder = record(folder.tracking, uri_of(database), picture=False)
    recorder.start_uploading()
    until(lambda: recorder.report().run_id and not recorder.report().unsent)
    copy = tmp_path / "copied" / "mnist" / NEWER
    shutil.copytree(folder.path, copy)
    (found,) = sync_folder(tmp_path / "copied").records
    assert (found.state, found.sent) == ("copy", 0)
    assert str(folder.path) in found.reason
    assert not has_ended(copy / "tracking")
    assert [run.info.status for run in mlflow_runs(uri_of(database)).values()] == ["RUNNING"]
    assert recorder.close("FINISHED").unsent == 0


def test_a_run_that_was_moved_is_no_copy(ended: Path, tmp_path: Path) -> None:
    place = tmp_path / "moved" / "mnist" / NEWER
    place.parent.mkdir(parents=True)
    ended.rename(place)
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for way in ("moved", "link"):
        assert states(sync_folder(tmp_path / way / "mnist")) == {NEWER: "complete"}
    RunRecorder(place / "tracking", RunRecord.load(place / "tracking")).abandon()
    assert states(sync_folder(tmp_path / "link" / "mnist")) == {NEWER: "complete"}


# Losses

LOST = {
    "the status": ["UPDATE runs SET status = 'RUNNING', end_time = NULL"],
    "points": [
        "DELETE FROM metrics WHERE key = 'train/loss' AND step > 2",
        "UPDATE latest_metrics SET step = 2, value = 0.5 WHERE key = 'train/loss'",
    ],
    "a metric": ["DELETE FROM metrics", "DELETE FROM latest_metrics"],
}


@pytest.mark.parametrize("statements", LOST.values(), ids=LOST.keys())
@pytest.mark.usefixtures("ended")
def test_what_mlflow_has_lost_is_sent_again(storage: Path, database: Path, statements: list[str]) -> None:
    (first,) = sync_folder(storage).records
    with sqlite3.connect(database) as opened:
        for statement in statements:
            opened.execute(statement)
    opened.close()
    (second,) = sync_folder(storage).records
    assert (second.state, second.run_id) == ("complete", first.run_id)
    assert second.sent > 0
    (run,) = mlflow_runs(uri_of(database)).values()
    assert run.info.status == "FINISHED"
    assert steps_of(uri_of(database), run) == STEPS
    assert sync_folder(storage).records[0].sent == 0


def test_what_mlflow_never_takes_does_not_count_as_lost(storage: Path, database: Path) -> None:
    recorder = record(run_folder(storage, status="finished").tracking, uri_of(database), picture=False)
    now = int(time.time() * 1000)
    recorder.append([MetricPoint("bad\nkey?", 1.0, 1, now), MetricPoint("val/loss", float("inf"), 9, now)])
    recorder.append([MetricPoint("val/accuracy", float("nan"), 9, now)])
    recorder.conclude("FINISHED")
    recorder.abandon()
    assert sync_folder(storage).is_complete
    assert "bad" in mlflow_runs(uri_of(database))[NEWER].data.tags[metrics.NOT_RECORDED]
    assert sync_folder(storage).records[0].sent == 0


def test_a_run_without_its_journal_is_left(storage: Path, ended: Path, golden: Golden) -> None:
    (ended / "tracking" / "journal.jsonl").unlink()
    (found,) = sync_folder(storage).records
    assert found.state == "left"
    assert not (ended / "tracking" / "journal.jsonl").exists()
    golden(found.reason)


@pytest.mark.parametrize(("key", "wrong"), [("uri", None), ("tags", {"a": 1})])
def test_one_damaged_record_stops_no_other(storage: Path, ended: Path, key: str, wrong: Any) -> None:
    """Each field of a record is looked at in tests/unit/tracking/test_run_record.py."""
    other = storage / "mnist" / "20260101-000000-aaaaaa"
    shutil.copytree(ended, other)
    file = other / "tracking" / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), key: wrong}))
    report = sync_folder(storage)
    assert states(report) == {NEWER: "complete", other.name: "left"}
    (reason,) = (each.reason for each in report.records if each.reason)
    assert str(file) in reason
    assert repr(key) in reason


# Servers that refuse

PAGE = b"<!doctype html><html><title>Sign in</title></html>"


@pytest.mark.parametrize(("status", "body"), [(401, PAGE), (403, b""), (200, PAGE)])
def test_a_server_that_refuses_is_reported_and_its_page_is_not_kept(
    storage: Path, status: int, body: bytes, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """It is healthy, and answers everything else so."""
    folder = run_folder(storage, status="finished")
    with answering(lambda request: (200, b"OK") if request.path.endswith("/health") else (status, body)) as uri:
        recorder = record(folder.tracking, uri, picture=False)
        recorder.start_uploading()
        until(lambda: recorder.report().error)
        report = recorder.close("FINISHED", timeout_seconds=0.1)
        assert report.error is not None
        kept = (folder.tracking / "uploaded.json").read_text()
        assert "html" not in kept
        assert "MLFLOW_TRACKING_TOKEN" in kept
        assert command(["sync", str(storage)]) == 3
    told = capsys.readouterr().err
    assert "MLFLOW_TRACKING_USERNAME" in told
    golden(report.error.replace(uri, "<uri>"))
