"""One run in MLflow, used in the upload threads."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_connection import Connection, is_refused
from paceline.tracking.run_record import TAG_LENGTH, RunRecord
from paceline.tracking.tracking_uri import is_http

if TYPE_CHECKING:
    from mlflow.entities import Run


T = TypeVar("T")

NAME_LENGTH = 250
"""Limit of MLflow's databases for a run's name, in characters."""


class MlflowRun:
    """The MLflow run of a Paceline run: found by its tag, or created."""

    def __init__(self, record: RunRecord, connection: Connection, found: "Run", tags: Mapping[str, str]) -> None:
        self.client = connection.client
        self.experiment_id = str(found.info.experiment_id)
        self.run_id = str(found.info.run_id)
        self.found: Run | None = found
        """The run when it was opened; None once the uploader has looked at it."""
        self._uri = record.uri
        self._artifact_uri = str(found.info.artifact_uri)
        known = found.data.params
        wanted = {metrics.mlflow_key(key): str(value) for key, value in record.params.items()}
        changed = [f"{key}: {known[key]} -> {value}" for key, value in wanted.items() if known.get(key, value) != value]
        self._params = {key: value for key, value in wanted.items() if key not in known}
        self._tags = {key: value for key, value in tags.items() if found.data.tags.get(key) != value}
        if changed:
            self._tags[metrics.CHANGED_PARAMS] = "\n".join(changed)[:TAG_LENGTH]

    @classmethod
    def open(
        cls, record: RunRecord, connection: Connection, parent_id: str | None = None, is_new: bool = False
    ) -> "MlflowRun":
        """Find or create experiment and run. Its params, and what tags are not there yet, go with the first `log`.

        Args:
            parent_id: MLflow's id of the parent run.
            is_new: True if the run cannot be there yet.
        """
        tags = dict(record.tags)
        if parent_id is not None:
            tags[metrics.PARENT_RUN] = parent_id
        found = None if is_new else connection.find(record, record.run_id)
        found = found or _create(record, connection, tags)
        connection.note(record, str(found.info.run_id))
        return cls(record, connection, found, tags)

    def log(self, points: Sequence[MetricPoint], tags: Mapping[str, str]) -> list[str]:
        """Store points, all finite or NaN, and tags, over older values, and what `open` has left; all of it at once.

        Returns what was refused for good, and why.
        """
        from mlflow.entities import Metric, Param, RunTag

        items = {
            "metrics": [Metric(point.key, float(point.value), point.timestamp_ms, point.step) for point in points],
            "params": [Param(key, value) for key, value in self._params.items()],
            "tags": [RunTag(key, value) for key, value in {**self._tags, **tags}.items()],
        }
        refused: list[str] = []
        if not any(items.values()):
            return refused
        try:
            self.client.log_batch(self.run_id, **items)  # keeps to MLflow's limits by itself
        except Exception as error:
            if not is_refused(error):
                raise
            self.require_active()
            for kind, those in items.items():
                refused += _in_halves(those, partial(self._log_kind, kind))
        self._params, self._tags = {}, {}
        return refused

    def require_active(self) -> None:
        """MLflow refuses everything for a deleted run, as it refuses what is wrong in itself.

        Raises:
            RuntimeError: the run was deleted.
        """
        if self.client.get_run(self.run_id).info.lifecycle_stage != "active":
            raise RuntimeError(f"the MLflow run {self.run_id} was deleted; everything is sent to a new one")

    def _log_kind(self, kind: str, items: Sequence[Any]) -> None:
        self.client.log_batch(self.run_id, **{kind: items})

    def log_artifact(self, file: Path, path: str) -> None:
        """Upload a file as the artifact `path`, over an older one."""
        folder = path.rpartition("/")[0]
        # unlike the client's own method, this does not fetch the whole run to learn its address
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        repository = get_artifact_repository(self._artifact_uri, tracking_uri=self._uri)
        repository.log_artifact(str(file), folder or None)

    def set_status(self, status: str, time_ms: int) -> None:
        """RUNNING, FINISHED, FAILED or KILLED; all but the first also set the end time."""
        if status == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status, time_ms)


def _create(record: RunRecord, connection: Connection, tags: Mapping[str, str]) -> "Run":
    """Create the run, with the tags that MLflow takes here: unlike `log_batch`, it looks at none of them."""
    plain = {key: value for key, value in tags.items() if key == metrics.mlflow_key(key)}
    created = connection.client.create_run(
        connection.experiment_id(record),
        start_time=record.start_time_ms,
        tags=plain,
        run_name=_run_name(record),
    )
    # A request may be repeated on its way to a server, and leave two.
    found = connection.find(record, record.run_id) if is_http(record.uri) else created
    if found is None:
        raise RuntimeError("MLflow created the run, but does not find it")
    return found


def _run_name(record: RunRecord) -> str:
    """The name with the part of the id that tells runs of one name apart: `mnist-cnn 180731-548a55`. Trials have names
    of their own."""
    own = re.fullmatch(r"\d{8}-(\d{6}-\w+)", record.run_id)
    tail = f" {own[1]}" if own and not record.parent else ""
    return record.name[: NAME_LENGTH - len(tail)] + tail


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
