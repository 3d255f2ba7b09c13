"""Sends what a run's journal holds beside points, tags and artifacts: its data sets and its checkpoints."""

from collections.abc import Callable, Sequence

from paceline.redaction import redact
from paceline.tracking import inputs, models
from paceline.tracking.journal import Entry
from paceline.tracking.record import RunRecord
from paceline.tracking.remote import is_refused
from paceline.tracking.remote_run import RemoteRun

KINDS = (inputs.KIND, models.KIND)
"""Kinds of entries of which one with the same content is not written twice."""
_UNKNOWN_THERE = ("ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "NOT_IMPLEMENTED")
"""How a server answers that is too old, or other than MLflow's own."""


def send_extras(
    batch: Sequence[Entry], record: RunRecord, remote: RemoteRun, find: Callable[[str], str | None]
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
            if entry.kind == inputs.KIND:
                inputs.send_datasets(entry.content, remote)
            elif entry.kind == models.KIND:
                models.send_model(entry.content, record, remote, find)
        except Exception as error:
            if not is_refused(error) and getattr(error, "error_code", None) not in _UNKNOWN_THERE:
                raise
            remote.require_active()
            refused.append(f"{entry.kind}: {redact(str(error))[:300]}")
    return refused
