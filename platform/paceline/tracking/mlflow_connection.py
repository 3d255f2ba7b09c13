"""One connection to an MLflow store for all recorders of a process: the client, and cached lookups."""

import re
import threading
import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from paceline.private_files import make_folder
from paceline.tracking import metrics
from paceline.tracking.mlflow_client import connect, disconnect, is_refused
from paceline.tracking.run_record import RunRecord
from paceline.tracking.tracking_uri import sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEPT_SECONDS = 60.0
"""How long something that was looked up is believed: the store may be another one some day."""

FileIdentity = tuple[int, int] | None
"""Device and number of a file."""

_NOT_ALLOWED = ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")
"""Who may write runs need not be allowed to change their experiment."""

_connections: "dict[str, Connection]" = {}
_locks: dict[str, threading.Lock] = {}
_lock = threading.Lock()


class Connection:
    """An MLflow store. Its methods may be called from several threads."""

    def __init__(self, client: "MlflowClient", uri: str = "", file: FileIdentity = None) -> None:
        """Know nothing of the store yet.

        Args:
            uri: the address that the client was made with.
            file: which file the store's database is; None where it is none.
        """
        self.client = client
        self._uri, self._file = uri, file
        self._known: dict[tuple[str, ...], tuple[str, float]] = {}

    @property
    def is_current(self) -> bool:
        """Whether the store's database is still the file that was opened, rather than one that was removed. A server
        has to know by itself."""
        return self._file is None or self._file == _identity(self._uri)

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

    def set_views(self, record: RunRecord) -> None:
        """Set the tags of the record's experiment; nothing is sent where it has them. A view that MLflow refuses is
        left out: it is no reason to keep the run back."""
        key = ("views", record.experiment, *record.views)
        if not record.views or self._recall(key):
            return
        experiment_id = self.experiment_id(record)
        known = self.client.get_experiment(experiment_id).tags
        for tag, value in record.views.items():
            if known.get(tag) != value:
                try:
                    self.client.set_experiment_tag(experiment_id, tag, value)
                except Exception as error:
                    if not is_refused(error) and getattr(error, "error_code", None) not in _NOT_ALLOWED:
                        raise
        self._keep(key, "set")

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
    """The process's one connection to a store, made again when its database is another file by now.

    Threads that need the same one wait for whoever is opening it.
    """
    with _lock:
        lock = _locks.setdefault(uri, threading.Lock())
    with lock:
        if uri in _connections and not _connections[uri].is_current:
            del _connections[uri]
            disconnect(uri)
        if uri not in _connections:
            file = _identity(uri)
            client = connect(uri)
            _connections[uri] = Connection(client, uri, file or _identity(uri))
        return _connections[uri]


def _identity(uri: str) -> FileIdentity:
    """Which file a database is; None when there is none, or the store is no file.

    Raises:
        OSError: the file system does not answer.
    """
    file = sqlite_file(uri)
    try:
        found = file.stat() if file is not None else None
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None


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
    artifacts = database.parent / "mlruns" / folder
    with suppress(OSError):  # whoever uploads artifacts reports that
        make_folder(artifacts)  # MLflow itself would let everybody read them
    return artifacts.as_uri()
