"""A database file that is removed or replaced while a run goes on is made up for within the same process."""

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import shipping
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]
RunsOf = Callable[[RunRecord], list[str]]


def _wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("at_once", [True, False], ids=["replaced", "removed"])
def test_a_database_that_is_replaced_while_a_run_goes_on_gets_everything(
    tmp_path: Path,
    prepared_database: Path,
    sqlite_uri: str,
    record: MakeRecord,
    points: MakePoints,
    stored: Stored,
    runs_of: RunsOf,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    def start(path: Path) -> "subprocess.Popen[bytes] | None":
        if path.exists():
            return None
        made = ["cp", str(prepared_database), str(path)]
        return subprocess.Popen(made, stderr=subprocess.PIPE)

    monkeypatch.setattr(shipping.database, "start_creating", start)
    about, other = record(sqlite_uri, params={"lr": 0.1}), record(sqlite_uri, run_id="other")
    recorders = [Recorder(tmp_path / each.run_id, each) for each in (about, other)]
    for recorder in recorders:
        recorder.append(points(1, 50))
        recorder.start_shipping()
    _wait_for(lambda: all(each.report().run_id and not each.report().unsent for each in recorders))
    before = [str(each.report().run_id) for each in recorders]
    (tmp_path / "mlflow.db").unlink()
    if at_once:
        shutil.copy(prepared_database, tmp_path / "mlflow.db")
    _wait_for(lambda: all(each.report().run_id not in (None, "", *before) for each in recorders))
    for recorder in recorders:
        recorder.append(points(50, 100))
    reports = [each.close("FINISHED") for each in recorders]
    assert [(report.unsent, report.error) for report in reports] == [(0, None)] * 2
    assert set(runs_of(about)) == {report.run_id for report in reports}
    as_given = [(point.key, point.step, point.value, point.timestamp_ms) for point in points(1, 100)]
    for report in reports:
        assert stored(sqlite_uri, report.run_id) == as_given
    with sqlite3.connect(tmp_path / "mlflow.db") as opened:  # as another process sees it
        assert opened.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert opened.execute("SELECT count(*) FROM params").fetchone() == (1,)
    files = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    assert not [file for file in files if str(tmp_path) in file and "(deleted)" in file], "the old file is still open"
