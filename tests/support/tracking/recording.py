"""Points, records, and the contents of MLflow, as the tests of tracking need them."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.tracking import mlflow_connection
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient

MakeRecord = Callable[..., RunRecord]
"""The fixture `record`: a record whose run id and experiment are the test's own."""
Stored = list[tuple[str, int, float, int]]
"""Key, step, value and time of points, in order."""
DEAD = "http://127.0.0.1:9"
"""Nobody answers there."""


def points(*steps: int, key: str = "train/loss", since: int = 1_000) -> list[MetricPoint]:
    """Points of one key with steps in a range; the value tells the step, the time starts at `since`."""
    return [MetricPoint(key, 1.0 / step, step, since + step) for step in range(*steps)]


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def as_stored(taken: Iterable[MetricPoint]) -> Stored:
    """Points as `stored` returns them."""
    return sorted((each.key, each.step, each.value, each.timestamp_ms) for each in taken)


def stored(uri: str, run_id: str | None) -> Stored:
    """Points of a run in MLflow."""
    client = client_of(uri)
    keys = sorted(client.get_run(str(run_id)).data.metrics)
    return as_stored(
        MetricPoint(each.key, each.value, each.step, each.timestamp)
        for key in keys
        for each in client.get_metric_history(str(run_id), key)
    )


def client_of(uri: str) -> "MlflowClient":
    """A client that has just been answered: a server closes a connection that was idle for five seconds, and a request
    that comes at that moment fails."""
    from mlflow.exceptions import MlflowException

    client = mlflow_connection.connect(uri)
    with suppress(MlflowException):
        client.search_experiments(max_results=1)
    return client


def steps_of(uri: str, run_id: str | None) -> list[int]:
    """The steps of all stored points, in the order of their keys."""
    return [step for _, step, _, _ in stored(uri, run_id)]


def runs_of(record: RunRecord) -> list[str]:
    """MLflow's ids of all runs in a record's experiment that are not deleted."""
    client = client_of(record.uri)
    experiment = client.get_experiment_by_name(record.experiment)
    assert experiment is not None
    return [run.info.run_id for run in client.search_runs([experiment.experiment_id])]


def artifacts_of(uri: str, run_id: str | None) -> set[str]:
    """Names of a run's artifacts in MLflow, folders not looked into."""
    return {item.path for item in client_of(uri).list_artifacts(str(run_id))}
