"""A run in a store, killed and resumed elsewhere: MLflow has each point once, and those of the store's journal."""

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from paceline.storage.remote_folder import RemoteFolder
from paceline.tracking import mlflow_connection as mlflow
from support.storage.relay import Relay
from support.storage.runs import kill_at, points_in
from support.storage.training import NAME, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def in_mlflow(uri: str) -> list[tuple[str, int, float, int]]:
    client = mlflow.connect(uri)
    experiment = client.get_experiment_by_name(NAME)
    runs = client.search_runs([experiment.experiment_id]) if experiment is not None else []
    assert len(runs) <= 1
    return [
        (point.key, point.step, point.value, point.timestamp)
        for run in runs
        for key in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, key)
    ]


def test_mlflow_has_each_point_once_whatever_machine_continues(
    training: Training, remote: RemoteFolder, relay: Relay, tmp_path: Path, prepared_database: Path
) -> None:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    training.variables["MLFLOW_TRACKING_URI"] = uri
    # the journal's last piece is kept from the store for as long as MLflow could be sent it
    training.start_and_wait_before(14)
    training.until(lambda: len([key for key, *_ in in_mlflow(uri) if key == "train/loss"]) >= 8)
    held = relay.hold("PUT .*/tracking/journal.jsonl")
    training.go_on()
    training.until(held.is_set)
    time.sleep(3.0)  # MLflow is sent something every second
    training.kill()
    relay.let_go()
    training.forget()
    known = {(key, step) for key, step, *_ in in_mlflow(uri)}
    assert known <= {(point.key, point.step) for point in points_in(remote)}
    kill_at(training, relay, "PUT .*/step-32/MANIFEST.json")
    training.forget()
    training.run()
    points = in_mlflow(uri)
    counted = Counter((key, step) for key, step, *_ in points)
    assert {place: n for place, n in counted.items() if n > 1} == {}
    assert sorted(step for key, step, *_ in points if key == "train/loss") == list(range(1, 41))
    assert set(points) == {(each.key, each.step, each.value, each.timestamp_ms) for each in points_in(remote)}
