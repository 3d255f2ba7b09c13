"""Connections to MLflow stores: the client, one connection for all recorders of a process, and lookups of runs."""

import logging
import os
import re
import threading
import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from paceline._compat.mlflow import forget_database
from paceline.errors import EnvironmentFault
from paceline.garbage_collection import collector_paused
from paceline.private_files import make_folder
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.mlflow_probe import probe
from paceline.tracking.run_record import RunRecord
from paceline.tracking.tracking_uri import is_http, sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_ENVIRONMENT = {
    # The upload thread tries again by itself, and knows what it must not do twice: `create_run`, for one.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PARENT_POLL_SECONDS = 0.2
PARENT_SECONDS = 10.0
"""Time that a run waits for its parent, before that counts as a failure."""
KEPT_SECONDS = 60.0
"""Time for which a lookup is believed: the store may be replaced by another one."""

DATABASE_THREADS = 2
"""Threads that may use a database at the same time, see `_LimitedClient`."""
TURN_SECONDS = 60.0
"""Time that another thread waits for one of these."""

FileIdentity = tuple[int, int] | None
"""Device and number of a file."""

_NOT_ALLOWED = ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")
"""Refusals of a server: a user may write runs without being allowed to change their experiment."""

_connections: "dict[str, Connection]" = {}
_locks: dict[str, threading.Lock] = {}
_lock = threading.Lock()


def import_mlflow() -> None:
    """Import MLflow, quietly. Takes seconds the first time in a process."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    with collector_paused():
        import mlflow.store.db.utils

    # Creating a store prints dozens of lines, and a locked database its traceback; failures are reported by us.
    logging.getLogger(mlflow.store.db.utils.__name__).setLevel(logging.CRITICAL)


def connect(uri: str) -> "MlflowClient":
    """Make a client. For a database this opens it at once, and would create one that is missing."""
    import_mlflow()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    return client if is_http(uri) else cast("MlflowClient", _LimitedClient(client))


class _LimitedClient:
    """A client of a database, of which a few threads at a time call methods.

    MLflow's `create_run` holds a connection of SQLAlchemy's pool while it asks for another one. The pool has 15, so
    that as many threads would wait for each other until it gives up, after 30 s. A database is not faster with more,
    and each one that computes delays the other threads of the process.
    """

    def __init__(self, client: "MlflowClient") -> None:
        self._client = client
        self._turns = threading.BoundedSemaphore(DATABASE_THREADS)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def in_turn(*args: Any, **kwargs: Any) -> Any:
            if not self._turns.acquire(timeout=TURN_SECONDS):
                raise TimeoutError(f"the database has not answered {DATABASE_THREADS} others for {TURN_SECONDS:g} s")
            try:
                return found(*args, **kwargs)
            finally:
                self._turns.release()

        return in_turn


def is_refused(error: Exception) -> bool:
    """Return True if MLflow will never take this, however often it is sent."""
    return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"


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
        """True if the store's database is still the file that was opened. Always true for a server."""
        return self._file is None or self._file == _identity(self._uri)

    def experiment_id(self, record: RunRecord) -> str:
        """Return MLflow's id of the record's experiment, which is created if need be.

        Raises:
            RuntimeError: it was deleted.
        """
        key = ("experiment", record.experiment)
        return self._recall(key) or self._keep(key, _experiment(record, self.client))

    def find(self, record: RunRecord, run_id: str) -> "Run | None":
        """Return the run of the record's experiment with our tag. Of several, the first one stays."""
        found = self.client.search_runs([self.experiment_id(record)], f"tags.`{metrics.RUN_ID}` = '{run_id}'")
        first, *surplus = sorted(found, key=lambda run: (run.info.start_time, run.info.run_id)) or [None]
        for run in surplus:
            self.client.delete_run(run.info.run_id)
        return first

    def run_id(self, record: RunRecord, run_id: str) -> str | None:
        """Return MLflow's id of a run in the record's experiment; None while it is not there."""
        key = ("run", record.experiment, run_id)
        if known := self._recall(key):
            return known
        found = self.find(record, run_id)
        return None if found is None else self._keep(key, str(found.info.run_id))

    def await_parent(self, record: RunRecord, abandoned: threading.Event) -> str:
        """Return MLflow's id of a record's parent, which another recorder may be about to open.

        Raises:
            RuntimeError: it is not there in time.
        """
        deadline = time.monotonic() + PARENT_SECONDS
        while (found := self.run_id(record, record.parent)) is None:
            if time.monotonic() > deadline or abandoned.wait(PARENT_POLL_SECONDS):
                raise RuntimeError(f"the parent run {record.parent!r} is not in MLflow")
        return found

    def note(self, record: RunRecord, run_id: str) -> None:
        """Remember MLflow's id of a run, so that its children need not look it up."""
        if not record.parent:
            self._keep(("run", record.experiment, record.run_id), run_id)

    def set_views(self, record: RunRecord) -> None:
        """Set the tags of the record's experiment; nothing is sent where it has them. A view that MLflow refuses is
        left out; the run is recorded all the same."""
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
    """Return the process's one connection to a store, made again when its database is another file by now.

    Threads that need the same one wait for whoever is opening it.
    """
    with _lock:
        lock = _locks.setdefault(uri, threading.Lock())
    with lock:
        if uri in _connections and not _connections[uri].is_current:
            del _connections[uri]
            forget_database(uri)
        if uri not in _connections:
            file = _identity(uri)
            client = connect(uri)
            _connections[uri] = Connection(client, uri, file or _identity(uri))
        return _connections[uri]


def open_store(uri: str) -> "MlflowClient":
    """Return a client of a store that exists.

    Raises:
        EnvironmentFault: it is not, or does not answer.
    """
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        reason = f"there is no MLflow database {file}: go to the folder of the runs, or name it with --uri"
        raise EnvironmentFault(reason, "no-database", path=file)
    probe(uri)
    try:
        return shared(uri).client
    except Exception as error:  # MLflow's own errors, and those of what it connects with
        reason = f"MLflow at {redact(uri)} cannot be opened: {redact(str(error))}"
        raise EnvironmentFault(reason, "mlflow-not-opened", uri=redact(uri)) from error


def mlflow_id(client: "MlflowClient", record: RunRecord) -> str | None:
    """Return MLflow's id of a run; None when it is not there."""
    experiment = client.get_experiment_by_name(record.experiment)
    if experiment is None:
        return None
    runs = client.search_runs([experiment.experiment_id], f"tags.`{metrics.RUN_ID}` = '{record.run_id}'")
    oldest = min(runs, key=lambda run: (run.info.start_time, run.info.run_id), default=None)
    return None if oldest is None else str(oldest.info.run_id)


def own_id(uri: str, run_id: str) -> str:
    """Return Paceline's id of one of MLflow's runs; empty when the store is not there, or knows no such run."""
    try:
        return str(open_store(uri).get_run(run_id).data.tags.get(metrics.RUN_ID, ""))
    except Exception:  # whoever asks has other places to look in
        return ""


def _identity(uri: str) -> FileIdentity:
    """Return the identity of a database's file; None when it is not there, and for a server.

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
