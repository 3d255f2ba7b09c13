"""How long points wait for MLflow is a metric of its own: in the journal first, now and then, never about itself."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import metrics, remote, shipping
from paceline.tracking.cursor import CURSOR_FILE
from paceline.tracking.curves import curves_of
from paceline.tracking.note import summary
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, sync
from tracking.faulty_proxy import FaultyProxy

MakeRecord = Callable[..., RunRecord]


def taken(*steps: int, key: str = "train/loss", seconds_ago: float = 0.0) -> list[Point]:
    at = int((time.time() - seconds_ago) * 1000)
    return [Point(key, 1.0, step, at) for step in steps]


def lags(recorder: Recorder) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in recorder.history() if point.key == metrics.LAG_SECONDS]


def lags_in_mlflow(uri: str, run_id: str | None) -> list[tuple[int, float]]:
    history = remote.connect(uri).get_metric_history(str(run_id), metrics.LAG_SECONDS)
    return [(point.step, point.value) for point in history]


def until_sent(recorder: Recorder) -> None:
    deadline = time.monotonic() + 60
    while recorder.report().unsent or recorder.report().run_id is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_longest_wait_is_told_at_the_newest_step(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append([*taken(1, 2, seconds_ago=100), *taken(3), *taken(2, key="lr")])
    recorder.start_shipping()
    until_sent(recorder)
    time.sleep(0.3)  # several of the shipper's rounds
    until_sent(recorder)
    ((step, seconds),) = lags(recorder)
    assert step == 3
    assert 100 <= seconds < 160
    report = recorder.close("FINISHED")
    assert lags_in_mlflow(sqlite_uri, report.run_id) == lags(recorder) == [(step, seconds)]


def test_it_comes_once_for_each_round_that_sent_something_newer(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.start_shipping()
    for step in (1, 2, 3):
        recorder.append(taken(step))
        until_sent(recorder)
        time.sleep(0.2)
    recorder.append(taken(3, key="val/loss"))  # as new as what has been told of already
    recorder.set_tags({"some": "tag"})
    until_sent(recorder)
    time.sleep(0.2)
    assert [step for step, _ in lags(recorder)] == [1, 2, 3]
    recorder.close("FINISHED")
    assert [step for step, _ in lags(recorder)] == [1, 2, 3]


def test_a_quiet_run_sends_nothing_of_its_own(tmp_path: Path, proxy: FaultyProxy, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(proxy.uri))
    recorder.append(taken(1))
    recorder.start_shipping()
    until_sent(recorder)
    time.sleep(0.5)
    until_sent(recorder)
    before = len(proxy.requests)
    time.sleep(0.5)  # ten rounds
    assert len(proxy.requests) == before
    recorder.close("FINISHED")


def test_at_the_end_only_what_was_late_is_worth_a_request(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "LATE_SECONDS", 120.0)
    soon = Recorder(tmp_path / "soon", record(sqlite_uri, run_id="soon"))
    soon.append(taken(1, 2))
    soon.close("FINISHED")
    assert lags(soon) == []
    late = Recorder(tmp_path / "late", record(sqlite_uri, run_id="late"))
    late.append(taken(1, 2, seconds_ago=500))
    report = late.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert [step for step, _ in lags(late)] == [2]
    assert lags_in_mlflow(sqlite_uri, report.run_id) == lags(late)


def test_what_is_sent_once_more_is_not_told_of_twice(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(taken(1, 2, seconds_ago=500))
    report = recorder.close("FINISHED")
    told = lags(recorder)
    (tmp_path / "run" / CURSOR_FILE).unlink()
    again = sync(tmp_path / "run")
    assert (again.run_id, again.unsent) == (report.run_id, 0)
    assert lags_in_mlflow(sqlite_uri, report.run_id) == told
    remote.connect(sqlite_uri).delete_run(str(report.run_id))
    anew = sync(tmp_path / "run")
    assert lags_in_mlflow(sqlite_uri, anew.run_id) == told


def test_a_run_that_was_deleted_in_mlflow_is_not_late_in_the_next_one(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(taken(1, 2))
    first = recorder.close("KILLED").run_id
    assert lags(recorder) == []
    remote.connect(sqlite_uri).delete_run(str(first))
    journal = tmp_path / "run" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    aged = [{**line, "timestamp_ms": 1} if line["kind"] == "point" else line for line in lines]
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in aged))
    resumed = Recorder(tmp_path / "run", record(sqlite_uri))
    resumed.start_shipping()
    deadline = time.monotonic() + 60
    while resumed.report().run_id == first:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    until_sent(resumed)
    time.sleep(0.3)
    assert lags(resumed) == []
    resumed.append(taken(7))  # this is news
    until_sent(resumed)
    time.sleep(0.3)
    ((step, seconds),) = lags(resumed)
    assert (step, seconds < 60) == (7, True)
    resumed.close("FINISHED")


def test_the_note_leaves_it_out() -> None:
    """It says how MLflow did, and nothing of the run."""
    points = [Point(metrics.LAG_SECONDS, value, step, 1) for step, value in ((1, 0.5), (2, 2.0))]
    assert "lag" not in summary("n", curves_of(points), "FINISHED", None, {})
