"""The tracking URI of a run, its reachability, and links into its UI."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.redaction import redact
from paceline.tracking import mlflow_database

if TYPE_CHECKING:
    from paceline.config.sections import TrackingConfig

DATABASE_FILE = "mlflow.db"
UI_PORT = 5000
ENVIRONMENT_VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
HINT = (
    "give http://host:port or https://host:port of an MLflow server, sqlite:////folder/mlflow.db, or a postgresql://, "
    "mysql:// or mssql:// address"
)


def tracking_uri(config: "TrackingConfig", folder: Path) -> str:
    """The address of the run's MLflow store: the config's, the environment's, or a database in the working folder.

    Raises:
        ConfigError: the config names no kind of store that runs can be recorded in.
        EnvironmentFault: the environment does.
    """
    if config.uri:
        uri, reason = _absolute(config.uri, folder)
        if reason:
            raise ConfigError([Problem("tracking-uri", reason, "tracking.uri", hint=HINT)])
    elif variable := os.environ.get(ENVIRONMENT_VARIABLE, "").strip():
        uri, reason = _absolute(variable, folder)
        if reason:
            text = f"{ENVIRONMENT_VARIABLE}: {reason}; {HINT}"
            raise EnvironmentFault(text, "tracking-uri", variable=ENVIRONMENT_VARIABLE)
    else:
        uri = mlflow_database.sqlite_uri(folder.absolute() / DATABASE_FILE)
    return uri


def sqlite_file(uri: str) -> Path | None:
    """The database file of a `sqlite:` address; None for any other."""
    if not is_sqlite(uri):
        return None
    return Path(unquote(uri.partition(":///")[2].partition("?")[0]))


def start_creating(uri: str) -> None:
    """Begin to create an embedded store that is not there yet, in a process of its own; anything else is left alone.

    Called at launch, so that the store is there when training has something to record.
    """
    file = sqlite_file(uri)
    if file is not None:
        with suppress(OSError):  # whoever needs the store tries again, and reports it
            mlflow_database.start_creating(file, quiet=True)


def is_sqlite(uri: str) -> bool:
    """Return True for the address of a database file."""
    return re.match(r"sqlite(\+\w+)?:", uri) is not None


def is_http(uri: str) -> bool:
    """Return True for the address of an MLflow server."""
    return uri.startswith(("http://", "https://"))


def experiments_url(uri: str, path: str = "", query: str = "") -> str:
    """Return the page with all experiments, or one below it, without credentials; for a database, of `paceline ui`."""
    base = split_credentials(uri)[0].rstrip("/") if is_http(uri) else f"http://127.0.0.1:{UI_PORT}"
    # without the type of work, MLflow opens a page about language models instead
    return f"{base}/#/experiments{path}?{query}workflowType=machine_learning"


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """Return the page of a run."""
    return experiments_url(uri, f"/{experiment_id}/runs/{run_id}")


def view_url(uri: str, experiment_id: str, view_id: str) -> str:
    """Return the page of an experiment with a saved view, see `mlflow_views`."""
    return experiments_url(uri, f"/{experiment_id}/runs", f"viewStateShareKey={view_id}&compareRunsMode=CHART&")


def _absolute(uri: str, folder: Path) -> tuple[str, str]:
    scheme = uri.partition(":")[0].partition("+")[0].lower() if ":" in uri else ""
    if scheme == "sqlite":
        return _absolute_sqlite(uri, folder)
    if scheme in ("", "file"):
        return "", f"{redact(uri)!r} is a folder, and MLflow no longer records runs in folders"
    if scheme in ("http", "https"):
        try:
            parts = urlsplit(uri)
            valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            valid = False
        return (uri.rstrip("/"), "") if valid else ("", f"{redact(uri)!r} is not a valid web address")
    if scheme in DATABASE_PORTS:
        return uri, ""
    return "", f"{scheme}:// is not supported: {redact(uri)!r}"


def _absolute_sqlite(uri: str, folder: Path) -> tuple[str, str]:
    prefix, found, rest = uri.partition(":///")
    path, mark, options = rest.partition("?")
    if not found or not path or path == ":memory:" or path.startswith("file:"):
        return "", f"{redact(uri)!r} names no database file"
    here = Path(mlflow_database.sqlite_uri(folder.absolute()).removeprefix("sqlite:///"))  # in an address, as `path` is
    return f"{prefix}:///{here / path}{mark}{options}", ""


def split_credentials(uri: str) -> tuple[str, str, str]:
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, host, parts.path, "", ""))
    return base, unquote(parts.username or ""), unquote(parts.password or "")
