"""One run stays one MLflow run, whenever the server is away and whoever opens it at the same moment; nothing strays."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import metrics, remote
from paceline.tracking.cursor import ShipReport
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord, sweep_tags, trial_tags
from paceline.tracking.recorder import Recorder
from tracking.faulty_proxy import FaultyProxy

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]


def everything(uri: str) -> dict[str, list[str]]:
    """Names of all experiments of a store, the deleted ones included, to Paceline's ids of all their runs likewise."""
    from mlflow.entities import ViewType

    client = remote.connect(uri)
    experiments = client.search_experiments(ViewType.ALL)
    return {
        each.name: sorted(
            run.data.tags.get(metrics.RUN_ID, "a stray one")
            for run in client.search_runs([each.experiment_id], run_view_type=ViewType.ALL)
        )
        for each in experiments
    }


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("fault", ["refuse", 503, 401, "drop"])
def test_a_server_that_is_away_whenever_the_run_is_opened_has_one_run_in_the_end(
    tmp_path: Path,
    proxy: FaultyProxy,
    server_uri: str,
    record: MakeRecord,
    points: MakePoints,
    stored: Stored,
    fault: str | int,
) -> None:
    before = everything(server_uri)
    about = record(proxy.uri)
    proxy.order("refuse", "", 10_000)  # at the start
    first = Recorder(tmp_path / "run", about)
    first.start_shipping()
    first.append(points(1, 4))
    until(lambda: first.report().error)
    first.abandon()  # the driver dies, and is resumed: the server fails at each of its requests once
    proxy.forgive()
    for path in ("experiments/get-by-name", "experiments/create", "runs/search", "runs/create", "log-batch"):
        proxy.order(fault, path, 1)
    second = Recorder(tmp_path / "run", about)
    second.start_shipping()
    second.append(points(1, 7))
    until(lambda: second.report().run_id and not second.report().unsent)
    proxy.order(fault, "", 3)  # in mid-run
    second.append(points(7, 10))
    second.abandon()  # and once more, before it has noticed
    third = Recorder(tmp_path / "run", about)
    third.append(points(8, 13))
    report = third.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    after = everything(server_uri)
    assert {name: runs for name, runs in after.items() if before.get(name) != runs} == {
        about.experiment: [about.run_id]
    }
    assert [step for _, step, _, _ in stored(server_uri, report.run_id)] == list(range(1, 13))


def closing_at_once(recorders: list[Recorder]) -> list[ShipReport]:
    """Close records side by side; their reports, in the same order."""
    start = threading.Barrier(len(recorders))
    reports: dict[int, ShipReport] = {}

    def close(number: int, recorder: Recorder) -> None:
        start.wait()
        reports[number] = recorder.close("FINISHED", timeout_seconds=240)

    threads = [threading.Thread(target=close, args=each) for each in enumerate(recorders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [reports[number] for number in sorted(reports)]


@pytest.mark.parametrize("apart", [False, True], ids=["in threads", "in processes"])
def test_a_sweep_and_its_trials_that_start_at_once_are_one_run_each(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, apart: bool
) -> None:
    before = everything(sqlite_uri)
    parent = record(sqlite_uri, run_id="sweep", tags=sweep_tags("sweep"))
    about = [
        record(sqlite_uri, run_id=f"sweep/{number}", parent="sweep", tags=trial_tags("sweep", str(number)))
        for number in range(1 if apart else 4)
    ]
    recorders = [
        Recorder(tmp_path / each.run_id.replace("/", "-"), each, apart) for each in (*about, parent)
    ]  # the parent last
    for recorder in recorders:
        recorder.append(points(1, 5))
    reports = closing_at_once(recorders)
    assert [(report.unsent, report.error) for report in reports] == [(0, None)] * len(recorders)
    after = everything(sqlite_uri)
    assert after == {**before, parent.experiment: ["sweep", *(each.run_id for each in about)]}
    for report in reports[:-1]:
        tags = remote.connect(sqlite_uri).get_run(str(report.run_id)).data.tags
        assert tags[metrics.PARENT_RUN] == reports[-1].run_id


@pytest.mark.parametrize(
    ("status", "reason"), [("FINISHED", None), ("FAILED", "rank 1 died"), ("KILLED", "worse than half")]
)
def test_the_status_has_its_reason(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, status: str, reason: str | None
) -> None:
    recorder = Recorder(tmp_path / "run", record(sqlite_uri))
    recorder.append(points(1, 3))
    report = recorder.close(status, reason)  # type: ignore[arg-type]
    run = remote.connect(sqlite_uri).get_run(str(report.run_id))
    assert (run.info.status, run.data.tags.get(metrics.STATUS_REASON)) == (status, reason)
    assert run.info.end_time is not None
