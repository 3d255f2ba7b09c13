"""The recorder on an MLflow database: one run, each point once, whatever dies in between."""

import json
import math
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import metrics, remote, shipping
from paceline.tracking import recorder as module
from paceline.tracking.cursor import CURSOR_FILE, ShipReport
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, has_ended, sync
from tracking.faulty_proxy import FaultyProxy

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]
RunsOf = Callable[[RunRecord], list[str]]


def _as_stored(points: list[Point]) -> list[tuple[str, int, float, int]]:
    taken = [point for point in points if point.key != metrics.LAG_SECONDS]
    return sorted((point.key, point.step, point.value, point.timestamp_ms) for point in taken)


def _wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("run_id", "name", "shown"),
    [
        ("20261121-180731-548a55", "mnist-cnn", "mnist-cnn 180731-548a55"),
        ("20261121-180731-548a55", "n" * 300, "n" * 236 + " 180731-548a55"),
        ("20261121-180731-548a55/0007", "0007 lr=0.1", "0007 lr=0.1"),
    ],
)
def test_runs_of_one_name_are_told_apart_in_mlflows_list(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, run_id: str, name: str, shown: str
) -> None:
    report = Recorder(tmp_path, record(sqlite_uri, run_id=run_id, name=name)).close("FINISHED")
    run = remote.connect(sqlite_uri).get_run(str(report.run_id))
    assert run.info.run_name == shown
    assert run.data.tags[metrics.NAME] == name


def test_the_end_is_written_down_before_the_picture_is_drawn(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(points(1, 3))
    known: list[bool] = []
    monkeypatch.setattr(module, "loss_curve", lambda *given: known.append(has_ended(tmp_path / "run")))
    recorder.conclude("FINISHED")
    assert known == [True]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
def test_the_end_waits_no_longer_once_it_is_told_so(
    tmp_path: Path,
    proxy: FaultyProxy,
    record: MakeRecord,
    points: MakePoints,
    caplog: pytest.LogCaptureFixture,
    apart: bool,
    is_early: bool,
) -> None:
    proxy.order("sleep", "experiments", 1000)
    recorder = Recorder(tmp_path / "run", record(proxy.uri), apart)
    recorder.append(points(1, 3))
    recorder.start_shipping()
    if is_early:
        recorder.stop_waiting()
    else:
        threading.Timer(0.5, recorder.stop_waiting).start()
    since = time.monotonic()
    report = recorder.close("FINISHED", timeout_seconds=60)
    assert time.monotonic() - since < 20
    assert report.error == module.STOPPED_WAITING
    assert report.unsent >= 4
    assert has_ended(tmp_path / "run")
    assert "the shipping process ended" not in caplog.text


def test_a_finished_run_has_everything_in_mlflow(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    params = {f"key.{number}": number for number in range(150)}
    tags = {metrics.COMMAND: "paceline train a.yaml", **{f"tag.{number}": str(number) for number in range(120)}}
    about = record(sqlite_uri, params=params, tags=tags, artifacts={"config.yaml": "name: a\n"})
    recorder = Recorder(tmp_path / "run", about)
    written = [*points(1, 1301), *points(1, 1301, key="lr"), *points(100, 1301, 100, key="val/loss")]
    assert recorder.append(written) == len(written)
    recorder.add_artifact("deep/report.md", b"# report")
    report = recorder.close("FINISHED")

    assert (report.unsent, report.error) == (0, None)
    page = f"#/experiments/{report.experiment_id}/runs/{report.run_id}?workflowType=machine_learning"
    assert report.url == f"http://127.0.0.1:5000/{page}"
    assert stored(sqlite_uri, report.run_id) == _as_stored(written) == _as_stored(recorder.history())
    client = remote.connect(sqlite_uri)
    run = client.get_run(str(report.run_id))
    assert run.info.status == "FINISHED"
    assert run.info.end_time is not None
    assert run.info.run_name == "mnist-cnn"
    assert run.data.params == {key: str(value) for key, value in params.items()}
    assert {key: run.data.tags[key] for key in about.tags} == about.tags
    note = run.data.tags[metrics.NOTE]
    assert "| val/loss | 0.0007692 | 0.0007692 | 1300 |" in note
    assert "paceline train a.yaml" in note
    names = {item.path for item in client.list_artifacts(str(report.run_id))}
    assert names == {"config.yaml", "deep", "loss_curve.png"}
    folder = Path(str(run.info.artifact_uri).removeprefix("file://"))
    assert folder.is_relative_to(tmp_path / "mlruns")
    assert (folder / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "deep" / "report.md").read_text() == "# report"


def test_a_replayed_step_is_dropped_and_the_first_value_wins(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    about = record(sqlite_uri)
    first = Recorder(tmp_path / "run", about)
    assert first.append(points(1, 6)) == 5
    assert first.append(points(4, 8, since=9_000)) == 2
    again = Recorder(tmp_path / "run", about)  # as after a crash: the first one was never closed
    assert again.append(points(2, 9, since=20_000)) == 1
    assert again.append(points(1, 3, key="lr")) == 2
    report = again.close("FINISHED")
    times = [(step, time) for key, step, _, time in stored(sqlite_uri, report.run_id) if key == "train/loss"]
    assert times == [(1, 1001), (2, 1002), (3, 1003), (4, 1004), (5, 1005), (6, 9006), (7, 9007), (8, 20008)]


def test_one_that_has_a_breath_left_doubles_nothing(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    """The driver was killed, and the same command goes on, while the actor of the first one still takes messages."""
    about = record(sqlite_uri)
    old = Recorder(tmp_path / "run", about)
    old.append(points(1, 4))
    new = Recorder(tmp_path / "run", about)
    assert old.append(points(4, 8)) == 4
    assert new.append(points(1, 11, since=9_000)) == 3
    assert old.append(points(8, 10, since=20_000)) == 0
    report = new.close("FINISHED")
    times = [(step, time) for _, step, _, time in stored(sqlite_uri, report.run_id)]
    assert times == [*((step, 1_000 + step) for step in range(1, 8)), *((step, 9_000 + step) for step in range(8, 11))]
    numbers = [json.loads(line)["n"] for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_run_that_was_deleted_while_it_went_on_gets_everything_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored, runs_of: RunsOf
) -> None:
    about = record(sqlite_uri)
    recorder = Recorder(tmp_path / "run", about)
    recorder.append(points(1, 10))
    recorder.start_shipping()
    _wait_for(lambda: recorder.report().run_id and not recorder.report().unsent)
    first = recorder.report().run_id
    remote.connect(sqlite_uri).delete_run(str(first))
    recorder.append(points(10, 20))
    _wait_for(lambda: recorder.report().run_id != first and not recorder.report().unsent)
    report = recorder.close("FINISHED")
    assert runs_of(about) == [report.run_id] != [first]
    assert stored(sqlite_uri, report.run_id) == _as_stored(points(1, 20))
    assert metrics.NOT_RECORDED not in remote.connect(sqlite_uri).get_run(str(report.run_id)).data.tags


def test_a_batch_that_could_not_be_written_may_be_given_again(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(points(1, 3))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        recorder.append(points(3, 5))
    monkeypatch.undo()
    assert recorder.append(points(3, 5)) == 2
    assert [point.step for point in recorder.history()] == [1, 2, 3, 4]


def test_a_run_that_is_resumed_goes_on_in_the_same_mlflow_run(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored, runs_of: RunsOf
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri, params={"workers": 2, "lr": 0.1}))
    recorder.append(points(1, 4))
    failed = recorder.close("FAILED", "rank 1 died")
    client = remote.connect(sqlite_uri)
    assert client.get_run(str(failed.run_id)).data.tags[metrics.STATUS_REASON] == "rank 1 died"

    changed = record(sqlite_uri, params={"workers": 4, "lr": 0.1, "new": 1})
    resumed = Recorder(tmp_path / "run", changed)
    resumed.start_shipping()
    _wait_for(lambda: client.get_run(str(failed.run_id)).info.status == "RUNNING")
    resumed.append(points(1, 7))
    finished = resumed.close("FINISHED")

    assert runs_of(changed) == [finished.run_id] == [failed.run_id]
    assert [step for _, step, _, _ in stored(sqlite_uri, finished.run_id)] == [1, 2, 3, 4, 5, 6]
    run = client.get_run(str(finished.run_id))
    assert run.info.status == "FINISHED"
    assert run.data.params == {"workers": "2", "lr": "0.1", "new": "1"}
    assert run.data.tags[metrics.CHANGED_PARAMS] == "workers: 2 -> 4"
    assert run.data.tags[metrics.STATUS_REASON] == ""


KILLED_RUN = """
import sys, time
from pathlib import Path
from paceline.tracking import shipping
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
shipping.INTERVAL_SECONDS = 0.01
recorder = Recorder(Path({folder!r}), RunRecord({run_id!r}, "mnist-cnn", {uri!r}, {experiment!r}))
recorder.start_shipping()
step = 0
while True:
    step += 1
    recorder.append([Point(key, 1 / step, step, int(time.time() * 1000)) for key in ("train/loss", "lr")])
    print(step, recorder.report().run_id, flush=True)
    time.sleep(0.005)
"""


def _kill_once_it_ships(process: "subprocess.Popen[str]", steps_more: int) -> int:
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
    tmp_path: Path,
    sqlite_uri: str,
    record: MakeRecord,
    stored: Stored,
    runs_of: RunsOf,
    run_python: Callable[[str], "subprocess.Popen[str]"],
) -> None:
    about = record(sqlite_uri)
    names = {"folder": str(tmp_path / "run"), "uri": sqlite_uri, "run_id": about.run_id, "experiment": about.experiment}
    acknowledged = _kill_once_it_ships(run_python(KILLED_RUN.format(**names)), steps_more=40)

    recorder = Recorder(tmp_path / "run", about)
    before = {(point.key, point.step): point for point in recorder.history()}
    assert {("train/loss", acknowledged), ("lr", acknowledged)} <= before.keys()
    replayed = [Point(key, -1.0, step, 1) for step in range(1, acknowledged + 10) for key in ("train/loss", "lr")]
    recorder.append(replayed)
    report = recorder.close("FINISHED")

    assert runs_of(about) == [report.run_id]
    found = stored(sqlite_uri, report.run_id)
    assert found == _as_stored(recorder.history())
    assert len(found) == len({(key, step) for key, step, _, _ in found}) == 2 * (acknowledged + 9)
    assert all(value > 0 for _, step, value, _ in found if step <= acknowledged)


def test_a_lost_cursor_and_a_lost_run_are_made_up_for(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored, runs_of: RunsOf
) -> None:
    about = record(sqlite_uri)
    recorder = Recorder(tmp_path / "run", about)
    recorder.append(points(1, 50))
    first = recorder.close("FINISHED")

    (tmp_path / "run" / CURSOR_FILE).write_text("{broken")
    again = sync(tmp_path / "run")
    assert (again.run_id, again.unsent) == (first.run_id, 0)
    assert stored(sqlite_uri, first.run_id) == _as_stored(points(1, 50))

    remote.connect(sqlite_uri).delete_run(str(first.run_id))
    anew = sync(tmp_path / "run")
    assert runs_of(about) == [anew.run_id] != [first.run_id]
    assert stored(sqlite_uri, anew.run_id) == _as_stored(points(1, 50))
    assert remote.connect(sqlite_uri).get_run(str(anew.run_id)).info.status == "FINISHED"


def test_values_that_are_not_finite(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, stored: Stored, points: MakePoints
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    odd = [("train/loss", math.nan), ("val/loss", math.inf), ("grad_norm", -math.inf)]
    recorder.append([Point(key, value, 3, 5) for key, value in odd])
    recorder.append(points(4, 5))
    report = recorder.close("FAILED", "diverged")
    found = stored(sqlite_uri, report.run_id)
    assert [(key, step) for key, step, _, _ in found] == [("train/loss", 3), ("train/loss", 4)]
    assert math.isnan(found[0][2])
    tags = remote.connect(sqlite_uri).get_run(str(report.run_id)).data.tags
    assert tags[metrics.DIVERGED] == "val/loss is inf at step 3"
    assert [point.value for point in recorder.history()][1:3] == [math.inf, -math.inf]


def test_what_mlflow_refuses_does_not_hold_up_the_rest(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri, params={"bad key!": 1, "good": 2}))
    bad = [Point("no?such&key", 1.0, 2, 2), Point("x" * 300, 1.0, 3, 3)]
    recorder.append([*points(1, 40), *bad, *points(40, 80)])
    recorder.set_tags({"also/fine": "1", "not?fine": "2"})
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert stored(sqlite_uri, report.run_id) == _as_stored(points(1, 80))
    run = remote.connect(sqlite_uri).get_run(str(report.run_id))
    assert run.data.params == {"bad key_": "1", "good": "2"}
    assert run.data.tags["also/fine"] == "1"
    refused = run.data.tags[metrics.NOT_RECORDED]
    assert "no?such&key at step 2" in refused
    assert "not?fine" in refused


def test_a_locked_database_delays_nothing_but_the_shipping(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    recorder = Recorder(tmp_path / "run", record(f"{sqlite_uri}?timeout=0.2"))
    lock = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    recorder.start_shipping()
    began = time.monotonic()
    recorder.append(points(1, 100))
    assert time.monotonic() - began < 0.5
    _wait_for(lambda: "locked" in str(recorder.report().error))
    lock.execute("ROLLBACK")
    lock.close()
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert stored(sqlite_uri, report.run_id) == _as_stored(points(1, 100))


def test_a_missing_database_is_created_while_points_come_in(
    tmp_path: Path, prepared_database: Path, record: MakeRecord, points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = f"import shutil, time; time.sleep(0.5); shutil.copy({str(prepared_database)!r}, 'mlflow.db')"
    creation: list[Path] = []

    def start(path: Path) -> "subprocess.Popen[bytes]":
        creation.append(path)
        return subprocess.Popen(["python3", "-c", slowly], cwd=path.parent, stderr=subprocess.PIPE)

    monkeypatch.setattr(shipping.database, "start_creating", start)
    recorder = Recorder(tmp_path / "run", record(f"sqlite:///{tmp_path}/mlflow.db"))
    recorder.start_shipping()
    assert recorder.append(points(1, 3)) == 2
    assert recorder.close("FINISHED").unsent == 0
    assert creation == [tmp_path / "mlflow.db"]


def test_a_database_that_cannot_be_created_is_an_error_in_the_report(tmp_path: Path, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(f"sqlite:///{tmp_path}/nowhere/mlflow.db"))
    report = recorder.close("FAILED", "early", timeout_seconds=2)
    assert report.run_id is report.url is None
    assert report.unsent == 2
    assert "FileNotFoundError" in str(report.error)


def test_closing_twice_and_without_points_is_fine(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    first = recorder.close("KILLED", "Ctrl-C")
    assert recorder.close("FINISHED") == first
    assert isinstance(first, ShipReport)
    assert remote.connect(sqlite_uri).get_run(str(first.run_id)).info.status == "KILLED"


def test_an_unchanged_artifact_is_not_sent_again(tmp_path: Path, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record("http://127.0.0.1:9", artifacts={"config.yaml": "a"}))
    before = recorder.report().unsent
    recorder.add_artifact("config.yaml", b"a")
    assert recorder.report().unsent == before == 1
    recorder.add_artifact("config.yaml", b"b")
    assert recorder.report().unsent == 2


@pytest.mark.parametrize("path", ["/etc/passwd", "../out.txt", "a/../../b", ""])
def test_an_artifact_stays_in_its_folder(tmp_path: Path, record: MakeRecord, path: str) -> None:
    recorder = Recorder(tmp_path / "run", record("http://127.0.0.1:9"))
    with pytest.raises(ValueError, match="relative"):
        recorder.add_artifact(path, b"")


def test_the_record_names_the_secret_of_the_address_nowhere(
    tmp_path: Path, record: MakeRecord, points: MakePoints, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-S3cr3t"
    uri = f"http://user:{canary}@127.0.0.1:9"
    recorder = Recorder(
        tmp_path / "run", record(uri, params={"tracking.uri": uri}, artifacts={"c.yaml": f"uri: {uri}"})
    )
    recorder.append(points(1, 5))
    recorder.start_shipping()
    _wait_for(lambda: recorder.report().error)
    report = recorder.close("FAILED", f"could not reach {uri}", timeout_seconds=0.2)
    assert report.unsent == 8  # the points, c.yaml, the picture, the note and the status
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert {"journal.jsonl", "record.json", "c.yaml"} <= {file.name for file in files}
    assert not [file for file in files if canary.encode() in file.read_bytes()]
    assert canary not in f"{report} {caplog.text}"
    assert json.loads((tmp_path / "run" / "record.json").read_text())["uri"] == "http://127.0.0.1:9"
