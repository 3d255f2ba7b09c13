"""Uploads of the journal's data sets and checkpoints."""

from collections.abc import Callable, Sequence

from paceline.redaction import redact
from paceline.tracking import checkpoint_models, datasets
from paceline.tracking.journal import Entry
from paceline.tracking.mlflow_client import is_refused
from paceline.tracking.mlflow_run import MlflowRun
from paceline.tracking.run_record import RunRecord

KINDS = (datasets.KIND, checkpoint_models.KIND)
"""Kinds of entries of which one with the same content is not written twice."""
_UNKNOWN_THERE = ("ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "NOT_IMPLEMENTED")
"""How a server answers that is too old, or other than MLflow's own."""


def send_extras(
    batch: Sequence[Entry], record: RunRecord, remote: MlflowRun, find: Callable[[str], str | None]
) -> list[str]:
    """Send those of the entries that are data sets and checkpoints; as often as one likes.

    Args:
        find: gives MLflow's id of another run of the record's experiment; None when it is not there.

    Returns:
        What was refused for good, and why.
    """
    refused = []
    for entry in batch:
        try:
            if entry.kind == datasets.KIND:
                datasets.send_datasets(entry.content, remote)
            elif entry.kind == checkpoint_models.KIND:
                checkpoint_models.send_model(entry.content, record, remote, find)
        except Exception as error:
            if not is_refused(error) and getattr(error, "error_code", None) not in _UNKNOWN_THERE:
                raise
            remote.require_active()
            refused.append(f"{entry.kind}: {redact(str(error))[:300]}")
    return refused
