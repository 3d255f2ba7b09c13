"""A recorder and a real MLflow server, with a proxy between them that refuses, stalls and drops."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import remote
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, sync
from paceline.tracking.store import run_url
from tracking.faulty_proxy import FaultyProxy

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]
RunsOf = Callable[[RunRecord], list[str]]


def _steps(found: list[tuple[str, int, float, int]]) -> list[int]:
    return [step for _, step, _, _ in found]


PATHS = ["experiments/create", "runs/create", "log-batch", "runs/update", "artifacts"]


@pytest.mark.parametrize(
    ("fault", "path"),
    [
        *(("drop", path) for path in PATHS),
        *((503, path) for path in PATHS),
        ("refuse", "log-batch"),
        (401, "log-batch"),
        ("delay", "log-batch"),
    ],
)
def test_everything_arrives_exactly_once(
    tmp_path: Path,
    proxy: FaultyProxy,
    record: MakeRecord,
    points: MakePoints,
    stored: Stored,
    runs_of: RunsOf,
    fault: str | int,
    path: str,
) -> None:
    proxy.order(fault, path, 2)
    about = record(proxy.uri, params={"lr": 0.1}, artifacts={"config.yaml": "name: a"})
    recorder = Recorder(tmp_path / "run", about)
    recorder.start_shipping()
    for start in range(1, 41, 10):
        recorder.append(points(start, start + 10))
        time.sleep(0.03)
    report = recorder.close("FINISHED")

    found_after_drop = fault == "drop" and path.endswith("/create")  # it was created, and is found: no second try
    assert len(proxy.hits) == (1 if found_after_drop else 2)
    assert (report.unsent, report.error) == (0, None)
    assert runs_of(about) == [report.run_id]
    assert _steps(stored(proxy.uri, report.run_id)) == list(range(1, 41))
    run = remote.connect(proxy.uri).get_run(str(report.run_id))
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
    names = {item.path for item in remote.connect(proxy.uri).list_artifacts(str(report.run_id))}
    assert names == {"config.yaml", "loss_curve.png"}


def test_a_create_that_was_repeated_on_the_way_leaves_one_run(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, runs_of: RunsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a user may want that for other programs
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    proxy.order("drop", "runs/create", 1)
    about = record(proxy.uri)
    report = Recorder(tmp_path / "run", about).close("FINISHED")
    assert sum("runs/create" in request for request in proxy.requests) == 2
    assert runs_of(about) == [report.run_id]


def test_a_server_that_is_away_at_the_start_gets_everything_later(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    proxy.order("refuse", "", 1000)
    recorder = Recorder(tmp_path / "run", record(proxy.uri))
    recorder.start_shipping()
    slowest = 0.0
    for step in range(1, 101):
        began = time.monotonic()
        recorder.append(points(step, step + 1))
        slowest = max(slowest, time.monotonic() - began)
    while not recorder.report().error:
        time.sleep(0.02)
    assert slowest < 1.0
    assert recorder.report().unsent == 100
    assert recorder.report().url is None
    proxy.forgive()
    while recorder.report().unsent:
        time.sleep(0.02)
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert report.url == run_url(proxy.uri, str(report.experiment_id), str(report.run_id))
    assert _steps(stored(proxy.uri, report.run_id)) == list(range(1, 101))


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, proxy: FaultyProxy, server_uri: str, record: MakeRecord, points: MakePoints, stored: Stored
) -> None:
    remote.connect(proxy.uri)  # so that importing MLflow is not what takes the time
    proxy.order("sleep", "", 1000)
    recorder = Recorder(tmp_path / "run", record(proxy.uri))
    recorder.append(points(1, 11))
    began = time.monotonic()
    report = recorder.close("FINISHED", timeout_seconds=0.5)
    assert time.monotonic() - began < 3
    assert report.unsent == 13  # the points, the picture, the note and the status

    later = sync(tmp_path / "run", server_uri)
    assert (later.unsent, later.error) == (0, None)
    assert _steps(stored(server_uri, later.run_id)) == list(range(1, 11))
    assert remote.connect(server_uri).get_run(str(later.run_id)).info.status == "FINISHED"
