"""A run's files go their own way: trouble with them is told as such, and holds up nothing else."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import backoff, metrics, remote
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, sync

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]


def _wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_trouble_with_artifacts_does_not_hold_up_the_metrics(
    tmp_path: Path,
    sqlite_uri: str,
    record: MakeRecord,
    points: MakePoints,
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise OSError("bucket is gone")

    with monkeypatch.context() as patched:
        patched.setattr(remote.RemoteRun, "log_artifact", broken)
        recorder = Recorder(tmp_path / "run", record(sqlite_uri, artifacts={"config.yaml": "name: a"}))
        recorder.append(points(1, 5))
        report = recorder.close("FINISHED", timeout_seconds=3)
    assert report.unsent == 2  # config.yaml and loss_curve.png
    assert "bucket is gone" in str(report.error)
    assert len(stored(sqlite_uri, report.run_id)) == 4
    assert sync(tmp_path / "run").unsent == 0
    names = {item.path for item in remote.connect(sqlite_uri).list_artifacts(str(report.run_id))}
    assert names == {"config.yaml", "loss_curve.png"}


def test_trouble_with_artifacts_neither_slows_nor_speaks_for_the_metrics(
    tmp_path: Path,
    sqlite_uri: str,
    record: MakeRecord,
    points: MakePoints,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried: list[float] = []
    opened: list[object] = []
    open_run = remote.RemoteRun.open

    def broken(*_: object) -> None:
        tried.append(time.monotonic())
        raise OSError("bucket is gone")

    def opens(*given: Any) -> Any:
        opened.append(given)
        return open_run(*given)

    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 1000.0)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 1000.0)
    monkeypatch.setattr(remote.RemoteRun, "log_artifact", broken)
    monkeypatch.setattr(remote.RemoteRun, "open", opens)
    recorder = Recorder(tmp_path / "run", record(sqlite_uri, artifacts={"config.yaml": "name: a"}))
    recorder.start_shipping()
    _wait_for(lambda: tried)
    for step in (1, 2, 3):
        began = time.monotonic()
        recorder.append(points(step, step + 1))
        _wait_for(lambda: recorder.report().unsent == 1)  # the file
        assert time.monotonic() - began < 5
    assert (len(tried), len(opened)) == (1, 1)
    assert "files do not reach MLflow: OSError: bucket is gone" in str(recorder.report().error)
    assert "metrics do not reach" not in caplog.text
    monkeypatch.setattr(remote.RemoteRun, "log_artifact", lambda *_: None)
    report = recorder.close("FINISHED", timeout_seconds=30)  # tries at once
    assert (report.unsent, report.error) == (0, None)


def test_a_file_that_is_gone_is_told_and_keeps_nothing_open(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints
) -> None:
    artifacts = {"config.yaml": "name: a", "gone.txt": "gone"}
    recorder = Recorder(tmp_path / "run", record(sqlite_uri, artifacts=artifacts))
    (tmp_path / "run" / "artifacts" / "gone.txt").unlink()
    recorder.append(points(1, 5))
    report = recorder.close("FINISHED", timeout_seconds=30)
    assert (report.unsent, report.error) == (0, None)
    client = remote.connect(sqlite_uri)
    refused = client.get_run(str(report.run_id)).data.tags[metrics.NOT_RECORDED]
    assert "artifact gone.txt: the run's folder does not have the file any more" in refused
    assert {item.path for item in client.list_artifacts(str(report.run_id))} == {"config.yaml", "loss_curve.png"}
    again = sync(tmp_path / "run")
    assert (again.sent, again.unsent, again.error) == (0, 0, None)
