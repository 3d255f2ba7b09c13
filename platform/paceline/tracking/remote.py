"""One run in MLflow. The only file that calls MLflow's client; all of it runs in the shipping thread."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.tracking import metrics
from paceline.tracking.points import Point
from paceline.tracking.record import TAG_LENGTH, RunRecord
from paceline.tracking.redact import redact
from paceline.tracking.store import sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

POINTS_PER_REQUEST = 1000
"""MLflow's limit for the metrics of one `log_batch`."""
TEXTS_PER_REQUEST = 100
"""MLflow's limit for the params, and for the tags, of one `log_batch`."""

_ENVIRONMENT = {
    # The shipping thread tries again by itself, and knows what it must not do twice: `create_run`, for one.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class RemoteRun:
    """The MLflow run of a Paceline run: found by its tag, or created."""

    def __init__(self, client: "MlflowClient", experiment_id: str, run_id: str) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self.run_id = run_id

    @classmethod
    def open(cls, record: RunRecord, client: "MlflowClient") -> "RemoteRun":
        """Find or create experiment and run, and bring params and tags up to date."""
        experiment_id = _experiment(record, client)
        found = _find(record.run_id, experiment_id, client)
        if found is None:
            tags = {metrics.RUN_ID: record.run_id}
            client.create_run(experiment_id, start_time=record.start_time_ms, tags=tags, run_name=record.name)
            found = _find(record.run_id, experiment_id, client)
        if found is None:
            raise RuntimeError("MLflow created the run, but does not find it")
        run = cls(client, experiment_id, found.info.run_id)
        run._describe(record, found)
        return run

    def log_points(self, points: Sequence[Point]) -> list[str]:
        """Store points, all finite or NaN, in one request. Returns what was refused for good, and why."""
        from mlflow.entities import Metric

        items = [Metric(point.key, float(point.value), point.timestamp_ms, point.step) for point in points]
        return _in_halves(items, lambda part: self.client.log_batch(self.run_id, metrics=part))

    def set_tags(self, tags: Mapping[str, str]) -> list[str]:
        """Set tags, over older values. Returns what was refused for good, and why."""
        from mlflow.entities import RunTag

        items = [RunTag(key, value) for key, value in tags.items()]
        return _in_chunks(items, lambda part: self.client.log_batch(self.run_id, tags=part))

    def log_artifact(self, file: Path, path: str) -> None:
        """Upload a file as the artifact `path`, over an older one."""
        folder = path.rpartition("/")[0]
        self.client.log_artifact(self.run_id, str(file), folder or None)

    def set_status(self, status: str, time_ms: int) -> None:
        """RUNNING, FINISHED, FAILED or KILLED; all but the first also set the end time."""
        if status == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status, time_ms)

    def _describe(self, record: RunRecord, found: "Run") -> None:
        from mlflow.entities import Param

        known = dict(found.data.params)
        wanted = {_clean_key(key): str(value) for key, value in record.params.items()}
        fresh = [Param(key, value) for key, value in wanted.items() if key not in known]
        refused = _in_chunks(fresh, lambda part: self.client.log_batch(self.run_id, params=part))
        tags = {key: value for key, value in record.tags.items() if found.data.tags.get(key) != value}
        changed = [f"{key}: {known[key]} -> {value}" for key, value in wanted.items() if known.get(key, value) != value]
        if changed:
            tags[metrics.CHANGED_PARAMS] = "\n".join(changed)[:TAG_LENGTH]
        if refused:
            tags[metrics.NOT_RECORDED] = "\n".join(refused)[:TAG_LENGTH]
        self.set_tags(tags)


def import_mlflow() -> None:
    """Import MLflow, quietly. Takes seconds the first time in a process."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    import mlflow.store.db.utils

    # Creating a store prints dozens of lines, and a locked database its traceback; failures are reported by us.
    logging.getLogger(mlflow.store.db.utils.__name__).setLevel(logging.CRITICAL)


def connect(uri: str) -> "MlflowClient":
    """Make a client. For a database this opens it at once, and would create one that is missing."""
    import_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def is_refused(error: Exception) -> bool:
    """Whether MLflow will never take this, however often it is sent."""
    return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"


def _experiment(record: RunRecord, client: "MlflowClient") -> str:
    found = client.get_experiment_by_name(record.experiment)
    if found is None:
        return _create_experiment(record, client)
    if found.lifecycle_stage != "active":
        raise RuntimeError(
            f"the MLflow experiment {record.experiment!r} was deleted; restore it, or set tracking.experiment"
        )
    return str(found.experiment_id)


def _create_experiment(record: RunRecord, client: "MlflowClient") -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(record.experiment, _artifact_location(record)))
    except MlflowException as error:
        found = client.get_experiment_by_name(record.experiment)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return str(found.experiment_id)  # another run was faster


def _artifact_location(record: RunRecord) -> str | None:
    """Beside the database, whatever folder this process works in; a server knows by itself."""
    database = sqlite_file(record.uri)
    if database is None:
        return None
    folder = re.sub(r"[^\w.-]", "_", record.experiment)
    if folder != record.experiment or folder.startswith("."):
        folder = f"{folder[:80].lstrip('.')}-{sha256(record.experiment.encode()).hexdigest()[:8]}"
    return (database.parent / "mlruns" / folder).as_uri()


def _find(run_id: str, experiment_id: str, client: "MlflowClient") -> "Run | None":
    """The run with our tag. A `create_run` that was repeated on the way can have left two: the first one stays."""
    found = client.search_runs(
        [experiment_id],
        f"tags.`{metrics.RUN_ID}` = '{run_id}'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
    )
    for surplus in found[1:]:
        client.delete_run(surplus.info.run_id)
    return found[0] if found else None


def _in_chunks(items: list[T], send: Callable[[list[T]], Any]) -> list[str]:
    refused: list[str] = []
    for start in range(0, len(items), TEXTS_PER_REQUEST):
        refused += _in_halves(items[start : start + TEXTS_PER_REQUEST], send)
    return refused


def _in_halves(items: list[T], send: Callable[[list[T]], Any]) -> list[str]:
    """Send all at once; when MLflow refuses, find the culprits by halving, so that they hold up nothing else."""
    if not items:
        return []
    try:
        send(items)
    except Exception as error:
        if not is_refused(error):
            raise
        if len(items) == 1:
            return [f"{_name_of(items[0])}: {redact(str(error))[:300]}"]
        middle = len(items) // 2
        return _in_halves(items[:middle], send) + _in_halves(items[middle:], send)
    return []


def _name_of(item: Any) -> str:
    step = getattr(item, "step", None)
    return str(item.key)[:100] if step is None else f"{item.key[:100]} at step {step}"


def _clean_key(key: str) -> str:
    """A dotted key with what MLflow takes only: letters, digits and `_-. :/`, 250 characters."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:250]
