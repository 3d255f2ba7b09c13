"""A database that is removed or damaged once a run was sent to it: `train` warns, and `sync` sends the run again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.train import train
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.config.experiment import validate
from paceline.display import print_sync
from paceline.runs.sync import sync_folder
from support.cluster.coordinators import Events
from support.cluster.local_runs import enter_folder
from support.tracking.killing import NAME, read_mlflow

CONFIG = {
    "name": NAME,
    "model": {"name": "mlp", "in_features": 8, "num_classes": 4},
    "data": {"name": "synthetic", "shape": [8], "num_classes": 4, "num_samples": 64, "global_batch_size": 16},
    "trainer": {"epochs": 10, "log_every_n_steps": 1},
    "scaling": {"num_workers": 0, "use_gpu": False},
}


def overwrite(file: Path) -> None:
    half = file.stat().st_size // 2
    with file.open("r+b") as opened:
        opened.seek(half)
        opened.write(b"\xa5" * half)


@pytest.mark.parametrize("damage", [Path.unlink, overwrite])
def test_a_database_that_is_spoilt_after_the_last_upload_is_reported_and_made_again(
    tmp_path: Path,
    prepared_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], Any],
) -> None:
    enter_folder(tmp_path, monkeypatch)
    database, events = tmp_path / "mlflow.db", Events()
    shutil.copy(prepared_database, database)
    monkeypatch.setattr(ClaimedRun, "settle", lambda run, tell: damage(database))
    result = train(validate(CONFIG), listener=events)
    assert (result.status, events.warnings) == ("finished", ["unsent"])
    assert result.mlflow_run_id is not None
    if damage is overwrite:
        before = database.read_bytes()
        report = sync_folder("runs")
        assert [each.state for each in report.records] == ["left"]
        assert print_sync(report, as_json=False) == 3
        assert "[database-damaged]" in capsys.readouterr().err
        assert database.read_bytes() == before, "what can be saved from it stays"
        database.rename(tmp_path / "damaged.db")
    shutil.copy(prepared_database, database)
    report = sync_folder("runs")
    assert [(each.state, each.reason) for each in report.records] == [("complete", "")]
    assert print_sync(report, as_json=True) == 0
    mlflow = read_mlflow(f"sqlite:///{database}")
    assert mlflow.statuses == ["FINISHED"]
    assert len(mlflow.points) == len(result.points)
