"""What all recorders of a process share of an MLflow store: the client, and what was looked up there."""

import re
import threading
import time
from hashlib import sha256
from typing import TYPE_CHECKING

from paceline.tracking import metrics
from paceline.tracking.record import RunRecord
from paceline.tracking.remote import connect
from paceline.tracking.store import sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEPT_SECONDS = 60.0
"""How long something that was looked up is believed: the store may be another one some day."""

_connections: "dict[str, Connection]" = {}
_locks: dict[str, threading.Lock] = {}
_lock = threading.Lock()


class Connection:
    """An MLflow store. Its methods may be called from several threads."""

    def __init__(self, client: "MlflowClient") -> None:
        self.client = client
        self._known: dict[tuple[str, ...], tuple[str, float]] = {}

    def experiment_id(self, record: RunRecord) -> str:
        """MLflow's id of the record's experiment, which is created if need be.

        Raises:
            RuntimeError: it was deleted.
        """
        key = ("experiment", record.experiment)
        return self._recall(key) or self._keep(key, _experiment(record, self.client))

    def find(self, record: RunRecord, run_id: str) -> "Run | None":
        """The run of the record's experiment with our tag. Of several, `create_run` was repeated: the first stays."""
        found = self.client.search_runs([self.experiment_id(record)], f"tags.`{metrics.RUN_ID}` = '{run_id}'")
        first, *surplus = sorted(found, key=lambda run: (run.info.start_time, run.info.run_id)) or [None]
        for run in surplus:
            self.client.delete_run(run.info.run_id)
        return first

    def run_id(self, record: RunRecord, run_id: str) -> str | None:
        """MLflow's id of a run in the record's experiment; None while it is not there."""
        key = ("run", record.experiment, run_id)
        if known := self._recall(key):
            return known
        found = self.find(record, run_id)
        return None if found is None else self._keep(key, str(found.info.run_id))

    def note(self, record: RunRecord, run_id: str) -> None:
        """Tell MLflow's id of a run, so that its children need not look it up."""
        if not record.parent:
            self._keep(("run", record.experiment, record.run_id), run_id)

    def forget(self) -> None:
        """Look everything up again, since something went wrong."""
        self._known.clear()

    def _recall(self, key: tuple[str, ...]) -> str | None:
        value, since = self._known.get(key, ("", 0.0))
        return value if value and time.monotonic() - since < KEPT_SECONDS else None

    def _keep(self, key: tuple[str, ...], value: str) -> str:
        self._known[key] = value, time.monotonic()
        return value


def shared(uri: str) -> Connection:
    """The process's one connection to a store. Threads that need the same one wait for whoever is opening it."""
    with _lock:
        lock = _locks.setdefault(uri, threading.Lock())
    with lock:
        if uri not in _connections:
            _connections[uri] = Connection(connect(uri))
        return _connections[uri]


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
