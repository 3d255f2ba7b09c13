"""MLflow's client: made and imported in one place, in the upload threads."""

import logging
import os
from typing import TYPE_CHECKING

from paceline._compat.mlflow import forget_database

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ENVIRONMENT = {
    # The upload thread tries again by itself, and knows what it must not do twice: `create_run`, for one.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


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


def disconnect(uri: str) -> None:
    """Have the next client of a database open it again.

    MLflow keeps stores by their addresses, for as long as the process lives, and with them the open files: also one
    that was deleted meanwhile.
    """
    forget_database(uri)


def is_refused(error: Exception) -> bool:
    """Whether MLflow will never take this, however often it is sent."""
    return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"
