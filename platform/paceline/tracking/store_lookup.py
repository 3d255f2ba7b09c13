"""Looks up runs in an MLflow store without creating a database or an experiment."""

from typing import TYPE_CHECKING

from paceline.errors import EnvironmentFault
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.mlflow_connection import shared
from paceline.tracking.run_record import RunRecord
from paceline.tracking.store_probe import probe
from paceline.tracking.tracking_uri import is_sqlite, sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_store(uri: str) -> "MlflowClient":
    """A client of a store that is there.

    Raises:
        EnvironmentFault: it is not, or does not answer.
    """
    file = sqlite_file(uri) if is_sqlite(uri) else None
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
    """MLflow's id of a run; None when it is not there."""
    experiment = client.get_experiment_by_name(record.experiment)
    if experiment is None:
        return None
    runs = client.search_runs([experiment.experiment_id], f"tags.`{metrics.RUN_ID}` = '{record.run_id}'")
    oldest = min(runs, key=lambda run: (run.info.start_time, run.info.run_id), default=None)
    return None if oldest is None else str(oldest.info.run_id)


def own_id(uri: str, run_id: str) -> str:
    """Paceline's id of one of MLflow's runs; empty when the store is not there, or knows no such run."""
    try:
        return str(open_store(uri).get_run(run_id).data.tags.get(metrics.RUN_ID, ""))
    except Exception:  # whoever asks has other places to look in
        return ""
