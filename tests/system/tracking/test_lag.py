"""How long points wait for MLflow is a metric of its own: in the journal first, now and then, never about itself."""

import json
import time
from pathlib import Path

import pytest

from paceline.tracking import metrics, mlflow_client, mlflow_uploader
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder, sync
from paceline.tracking.upload_cursor import CURSOR_FILE
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import MakeRecord, until


def taken(*steps: int, key: str = "train/loss", seconds_ago: float = 0.0) -> list[MetricPoint]:
    at = int((time.time() - seconds_ago) * 1000)
    return [MetricPoint(key, 1.0, step, at) for step in steps]


def lags(recorder: RunRecorder) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in recorder.history() if point.key == metrics.LAG_SECONDS]


def lags_in_mlflow(uri: str, run_id: str | None) -> list[tuple[int, float]]:
    history = mlflow_client.connect(uri).get_metric_history(str(run_id), metrics.LAG_SECONDS)
    return [(point.step, point.value) for point in history]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One more for each round of a recorder's thread that has succeeded."""
    done: list[object] = []
    ship = MlflowUploader._upload
    monkeypatch.setattr(MlflowUploader, "_upload", lambda self: (ship(self), done.append(self))[0])
    return done


def until_quiet(recorder: RunRecorder, rounds: list[object]) -> None:
    """Wait until all was sent, and several rounds more have found nothing to do."""
    until(lambda: recorder.report().run_id is not None and not recorder.report().unsent)
    before = len(rounds)
    until(lambda: len(rounds) >= before + 4)
    until(lambda: not recorder.report().unsent)


def test_the_longest_wait_is_logged_at_the_newest_step_once_for_each_round(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, rounds: list[object]
) -> None:
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri))
    recorder.append([*taken(1, 2, seconds_ago=100), *taken(3), *taken(2, key="lr")])
    recorder.start_uploading()
    until_quiet(recorder, rounds)
    ((step, seconds),) = lags(recorder)
    assert step == 3
    assert 100 <= seconds < 400
    for step in (4, 5):
        recorder.append(taken(step))
        until_quiet(recorder, rounds)
    recorder.append(taken(5, key="val/loss"))  # as new as what has been logged already
    recorder.set_tags({"some": "tag"})
    until_quiet(recorder, rounds)
    assert [step for step, _ in lags(recorder)] == [3, 4, 5]
    report = recorder.close("FINISHED")
    assert lags_in_mlflow(sqlite_uri, report.run_id) == lags(recorder)
    assert [step for step, _ in lags(recorder)] == [3, 4, 5]


def test_a_quiet_run_sends_no_requests(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, rounds: list[object]
) -> None:
    recorder = RunRecorder(tmp_path / "run", record(proxy.uri))
    recorder.append(taken(1))
    recorder.start_uploading()
    until_quiet(recorder, rounds)
    before = len(proxy.requests)
    until_quiet(recorder, rounds)
    assert len(proxy.requests) == before
    recorder.close("FINISHED")


def test_at_the_end_only_late_points_are_worth_a_request(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_uploader, "LATE_SECONDS", 250.0)
    soon = RunRecorder(tmp_path / "soon", record(sqlite_uri, run_id="soon"))
    soon.append(taken(1, 2))
    soon.close("FINISHED")
    assert lags(soon) == []
    late = RunRecorder(tmp_path / "late", record(sqlite_uri, run_id="late"))
    late.append(taken(1, 2, seconds_ago=500))
    report = late.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    told = lags(late)
    assert [step for step, _ in told] == [2]
    assert lags_in_mlflow(sqlite_uri, report.run_id) == told
    (tmp_path / "late" / CURSOR_FILE).unlink()
    again = sync(tmp_path / "late")  # sent once more, and not logged again
    assert (again.run_id, again.unsent) == (report.run_id, 0)
    assert lags_in_mlflow(sqlite_uri, report.run_id) == told
    mlflow_client.connect(sqlite_uri).delete_run(str(report.run_id))
    assert lags_in_mlflow(sqlite_uri, sync(tmp_path / "late").run_id) == told


def test_points_of_a_run_that_was_deleted_in_mlflow_are_not_late_in_the_next_one(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, rounds: list[object]
) -> None:
    recorder = RunRecorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(taken(1, 2))
    first = recorder.close("KILLED").run_id
    assert lags(recorder) == []
    mlflow_client.connect(sqlite_uri).delete_run(str(first))
    journal = tmp_path / "run" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    aged = [{**line, "timestamp_ms": 1} if line["kind"] == "point" else line for line in lines]
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in aged))
    resumed = RunRecorder(tmp_path / "run", record(sqlite_uri))
    resumed.start_uploading()
    until(lambda: resumed.report().run_id != first)
    until_quiet(resumed, rounds)
    assert lags(resumed) == []
    resumed.append(taken(7))  # this is news
    until_quiet(resumed, rounds)
    ((step, seconds),) = lags(resumed)
    assert (step, seconds < 300) == (7, True)
    resumed.close("FINISHED")
