"""A sweep in MLflow: a parent run with a child for each trial."""

import time
from pathlib import Path

import pytest

from paceline.tracking import metrics, mlflow_connection
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_connection import Connection
from paceline.tracking.run_record import RunRecord, sweep_tags, trial_state_tags, trial_tags
from paceline.tracking.run_recorder import TRIAL_STATUS, RunRecorder
from paceline.tracking.sweep_note import Objective, sweep_note, sweep_points
from paceline.tracking.trials_table import TrialRow, trials_csv
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadReport
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.markdown import best_of
from support.tracking.recording import MakeRecord, artifacts_of, client_of, points, runs_of, steps_of, stored, until

ACCURACY = [Objective("val/accuracy", "max")]
ENDINGS = {"finished": "FINISHED", "failed": "FAILED", "oom": "FAILED", "diverged": "FAILED", "pruned": "KILLED"}


def trial(about: RunRecord, number: int, **changes: object) -> RunRecord:
    """The record of a sweep's trial, as the sweep makes it."""
    given = {
        "run_id": f"{about.run_id}/{number:04}",
        "name": f"{number:04} global_batch_size={64 * number}",
        "title": about.name,
        "parent": about.run_id,
        "picture": False,
        "params": {f"key.{index}": index for index in range(110)},
        "tags": trial_tags(about.run_id, f"{number:04}"),
        "artifacts": {"config.yaml": f"name: {number}"},
    }
    return RunRecord(**{"uri": about.uri, "experiment": about.experiment, **given, **changes})  # type: ignore[arg-type]


def run_trial(folder: Path, about: RunRecord, taken: list[MetricPoint], state: str) -> UploadReport:
    recorder = RunRecorder(folder, about)
    recorder.set_tags(trial_state_tags("running"))
    recorder.start_uploading()
    recorder.append(taken)
    recorder.set_tags(trial_state_tags(state))
    return recorder.close(TRIAL_STATUS.get(state, "KILLED"), None if state == "finished" else f"it was {state}")


def test_a_sweep_that_crashed_and_was_opened_again(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    """It has a trial of each state."""
    about, folder = record(sqlite_uri, tags=sweep_tags("s"), picture=False), tmp_path / "sweep"
    parent = RunRecorder(folder / "tracking", about)
    parent.start_uploading()

    def run_trials() -> list[UploadReport]:
        return [
            run_trial(folder / state, trial(about, number), points(1, 5 + number), state)
            for number, state in enumerate(ENDINGS, 1)
        ]

    reports = run_trials()
    rows = [
        TrialRow(f"{number:04}", {"lr": number}, state, metrics={"val/accuracy": 0.5})
        for number, state in enumerate(ENDINGS, 1)
    ]
    best = {"val/accuracy": 0.5}
    for count in range(1, 6):
        parent.append(sweep_points(dict.fromkeys(list(ENDINGS)[:count], 1), best, 1_000 + count))
    # as after a crash: the parent was never closed, and the steps are computed again
    parent = RunRecorder(folder / "tracking", about)
    parent.append(sweep_points(dict.fromkeys(ENDINGS, 1), best, 9_000))
    (folder / "finished" / CURSOR_FILE).unlink()
    again = run_trials()
    parent.add_artifact("trials.csv", trials_csv(rows).encode())
    closed = parent.close("FINISHED", note=sweep_note("mnist", "finished", None, ACCURACY, rows))

    assert [(one.unsent, one.error) for one in [*reports, *again, closed]] == [(0, None)] * 11
    assert [one.run_id for one in again] == [one.run_id for one in reports]
    assert sorted(runs_of(about)) == sorted(str(one.run_id) for one in [closed, *reports])
    client = client_of(about.uri)
    children = client.search_runs([str(closed.experiment_id)], f"tags.`mlflow.parentRunId` = '{closed.run_id}'")
    assert {run.info.run_id for run in children} == {one.run_id for one in reports}
    for number, (state, status) in enumerate(ENDINGS.items(), 1):
        run = client.get_run(str(reports[number - 1].run_id))
        assert run.info.status == status
        assert run.info.run_name == f"{number:04} global_batch_size={64 * number}"
        assert len(run.data.params) == 110
        tags = {key: run.data.tags[key] for key in (metrics.KIND, metrics.TRIAL_STATE, metrics.NAME)}
        assert tags == {metrics.KIND: "trial", metrics.TRIAL_STATE: state, metrics.NAME: about.name}
        assert run.data.tags.get(metrics.STATUS_REASON, "") == ("" if state == "finished" else f"it was {state}")
        assert f"## {number:04} global\\_batch\\_size={64 * number}" in run.data.tags[metrics.NOTE]
        assert steps_of(about.uri, run.info.run_id) == list(range(1, 5 + number))
        assert artifacts_of(about.uri, run.info.run_id) == {"config.yaml"}
    found = client.get_run(str(closed.run_id))
    assert metrics.PARENT_RUN not in found.data.tags
    assert best_of(found.data.tags[metrics.NOTE]) == "lr=1"
    counts = {"trials/finished": 1, "trials/failed": 3, "trials/pruned": 1}
    assert found.data.metrics == {"best/val/accuracy": 0.5, **counts}
    steps = [(step, stamp) for key, step, _, stamp in stored(about.uri, closed.run_id) if key == "trials/failed"]
    assert steps == [(step, 1_000 + step) for step in range(1, 6)]
    assert artifacts_of(about.uri, closed.run_id) == {"trials.csv"}
    assert {experiment.name for experiment in client.search_experiments()} == {"Default", about.experiment}


def test_a_child_waits_for_its_parent(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = record(sqlite_uri)
    looked: list[str] = []
    look = Connection.run_id
    monkeypatch.setattr(Connection, "run_id", lambda self, *given: (looked.append(given[1]), look(self, *given))[1])
    child = RunRecorder(tmp_path / "child", trial(about, 1))
    child.append(points(1, 3))
    child.start_uploading()
    until(lambda: len(looked) > 2)
    assert set(looked) == {about.run_id}
    assert (child.report().run_id, child.report().error) == (None, None)
    parent = RunRecorder(tmp_path / "parent", about)
    parent.start_uploading()
    report = child.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    run = client_of(sqlite_uri).get_run(str(report.run_id))
    assert run.data.tags[metrics.PARENT_RUN] == parent.close("FINISHED").run_id


def test_a_parent_that_never_comes_is_an_error_and_no_hanging(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_connection, "PARENT_SECONDS", 0.3)
    about = record(sqlite_uri)
    child = RunRecorder(tmp_path / "child", trial(about, 1))
    child.start_uploading()
    until(lambda: child.report().error)
    report = child.close("FINISHED", timeout_seconds=0.1)
    assert about.run_id in str(report.error)
    assert report.run_id is None
    assert runs_of(about) == []


def test_a_parent_that_was_deleted_in_mlflow_gets_its_later_children(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    about = record(sqlite_uri)
    parent = RunRecorder(tmp_path / "parent", about)
    parent.start_uploading()
    first = run_trial(tmp_path / "1", trial(about, 1), points(1, 3), "finished")
    client = client_of(sqlite_uri)
    client.delete_run(client.get_run(str(first.run_id)).data.tags[metrics.PARENT_RUN])
    parent.append([MetricPoint(metrics.trials_metric("finished"), 1.0, 1, 1)])
    report = parent.close("FINISHED")
    later = run_trial(tmp_path / "2", trial(about, 2), points(1, 3), "finished")
    assert client.get_run(str(later.run_id)).data.tags[metrics.PARENT_RUN] == report.run_id


def test_a_child_takes_few_requests(tmp_path: Path, proxy: FaultyProxy, record: MakeRecord) -> None:
    about = record(proxy.uri)
    parent = RunRecorder(tmp_path / "parent", about)
    parent.start_uploading()
    run_trial(tmp_path / "1", trial(about, 1), points(1, 3), "finished")
    parent.close("FINISHED")  # its thread would make requests of its own meanwhile
    before = len(proxy.requests)
    recorder = RunRecorder(tmp_path / "2", trial(about, 2, artifacts={}))
    recorder.append(points(1, 31, since=int(time.time() * 1000) - 31))
    assert recorder.close("FINISHED").unsent == 0
    runs = [request.partition("/mlflow/runs/")[2] for request in proxy.requests[before:] if "/mlflow/runs/" in request]
    assert runs == ["search", "create", "search", "log-batch", "log-batch", "update"]  # 110 params take two batches
