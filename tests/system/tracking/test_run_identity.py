"""One run stays one MLflow run, whenever the server is away and whoever opens it at the same moment; nothing strays."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.tracking import metrics
from paceline.tracking.run_record import RunRecord, sweep_tags, trial_tags
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.tracking_uri import run_url
from paceline.tracking.upload_cursor import UploadReport
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import MakeRecord, client_of, points, steps_of, until


def everything_of(about: RunRecord, uri: str) -> dict[str, list[str]]:
    """Paceline's ids of all runs in a record's experiment and in MLflow's default one, deleted ones included.

    A run or an experiment of the same name that was made twice would be among them.
    """
    from mlflow.entities import ViewType

    client = client_of(uri)
    experiments = [
        each for each in client.search_experiments(ViewType.ALL) if each.name in (about.experiment, "Default")
    ]
    return {
        each.name: sorted(
            run.data.tags.get(metrics.RUN_ID, "a stray one")
            for run in client.search_runs([each.experiment_id], run_view_type=ViewType.ALL)
        )
        for each in experiments
    }


def test_a_server_that_is_away_whenever_the_run_is_opened_has_one_run_in_the_end(
    tmp_path: Path, proxy: FaultyProxy, server_uri: str, record: MakeRecord
) -> None:
    about = record(proxy.uri)
    proxy.order("refuse", "", 10_000)  # at the start
    first = RunRecorder(tmp_path / "run", about)
    first.start_uploading()
    first.append(points(1, 4))
    until(lambda: first.report().error)
    assert (first.report().unsent, first.report().url) == (3, None)
    first.abandon()  # the driver dies, and is resumed: the server fails at each of its requests in both ways
    proxy.forgive()
    for path in ("experiments/get-by-name", "experiments/create", "runs/search", "runs/create", "log-batch"):
        for fault in (503, "drop"):
            proxy.order(fault, path, 1)
    second = RunRecorder(tmp_path / "run", about)
    second.start_uploading()
    second.append(points(1, 7))
    until(lambda: second.report().run_id and not second.report().unsent)
    for fault in (503, "drop"):
        proxy.order(fault, "", 2)  # in mid-run
    second.append(points(7, 10))
    second.abandon()  # and once more, before it has noticed
    third = RunRecorder(tmp_path / "run", about)
    third.append(points(8, 13))
    report = third.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert report.url == run_url(proxy.uri, str(report.experiment_id), str(report.run_id))
    assert everything_of(about, server_uri) == {"Default": [], about.experiment: [about.run_id]}
    assert steps_of(server_uri, report.run_id) == list(range(1, 13))


def closing_at_once(recorders: list[RunRecorder]) -> list[UploadReport]:
    """Close records side by side; their reports, in the same order."""
    with ThreadPoolExecutor(len(recorders)) as threads:
        return list(threads.map(lambda recorder: recorder.close("FINISHED", timeout_seconds=240), recorders))


@pytest.mark.parametrize(
    "apart", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in threads", "in processes"]
)
def test_a_sweep_and_its_trials_that_start_at_once_are_one_run_each(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, apart: bool
) -> None:
    parent = record(sqlite_uri, run_id="sweep", tags=sweep_tags("sweep"))
    about = [
        record(sqlite_uri, run_id=f"sweep/{number}", parent="sweep", tags=trial_tags("sweep", str(number)))
        for number in range(1 if apart else 4)
    ]
    recorders = [
        RunRecorder(tmp_path / each.run_id.replace("/", "-"), each, apart) for each in (*about, parent)
    ]  # the parent last
    for recorder in recorders:
        recorder.append(points(1, 5))
    reports = closing_at_once(recorders)
    assert [(report.unsent, report.error) for report in reports] == [(0, None)] * len(recorders)
    expected = {"Default": [], parent.experiment: ["sweep", *(each.run_id for each in about)]}
    assert everything_of(parent, sqlite_uri) == expected
    for report in reports[:-1]:
        tags = client_of(sqlite_uri).get_run(str(report.run_id)).data.tags
        assert tags[metrics.PARENT_RUN] == reports[-1].run_id
