"""Data sets and kept checkpoints of a run: as entries of its journal, and as MLflow shows them.

A checkpoint is an external model of MLflow's, which knows it by address and hash; no weights are copied.
"""

import json
import logging
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.journal import Entry
from paceline.tracking.mlflow_connection import is_refused
from paceline.tracking.mlflow_run import MlflowRun
from paceline.tracking.run_record import RunRecord, clean_tags

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

logger = logging.getLogger(__name__)

DATASETS = "datasets"
MODEL = "model"
KINDS = (DATASETS, MODEL)
"""Kinds of entries of which one with the same content is not written twice."""
SOURCE_TYPE = "paceline"
DIGEST_LENGTH = 36
"""MLflow's limit for a fingerprint, in characters; the whole one is in the data set's profile."""
NAME_LENGTH = 500
"""MLflow's limit for a name, in characters."""
SOURCE_LENGTH = 65_535
"""MLflow's limit for the text that says where the data come from, in characters."""
_CONTEXT = "mlflow.data.context"
LOADING = (
    *(
        "global_batch_size",
        "micro_batch_size",
        "batch_size_schedule",
        "shuffle",
        "drop_last",
        "num_workers",
        "pin_memory",
    ),
    *("prefetch_factor", "persistent_workers", "cache"),
)
"""Keys of the section `data` that say how samples are loaded, and not which ones."""
MODEL_TYPE = "checkpoint"
_IS_EXTERNAL = "mlflow.model.isExternal"
_NAME_LENGTH = 200
_UNKNOWN_THERE = ("ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "NOT_IMPLEMENTED")
"""Answers of a server that is too old, or other than MLflow's own."""


@dataclass(frozen=True)
class CheckpointModel:
    """A checkpoint that is kept."""

    step: int
    """Optimizer step that it was saved at."""
    uri: str
    """Address of its folder."""
    sha256: str
    """SHA-256 of its file `model.safetensors`, as its manifest has it."""
    metrics: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Metrics at its step: by key the value, and the time in milliseconds since 1970."""
    run_id: str = ""
    """Paceline's id of the run that saved it; empty: the one that records it."""

    def entry(self) -> dict[str, Any]:
        """Return the entry of the journal, as JSON values."""
        return {**asdict(self), "uri": redact(self.uri), "metrics": {k: list(v) for k, v in self.metrics.items()}}


def datasets_entry(record: RunRecord, sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the journal's entry about the data sets, as JSON values.

    Args:
        sets: `training` and `validation`, each a mapping with `name`, `size` (samples) and `fingerprint`, or None.
    """
    keys = ("name", "size", "fingerprint")
    found = {role: {key: each.get(key) for key in keys} for role, each in sets.items() if each}
    return {"sets": found, "source": source_text(record.params)}


def source_text(params: Mapping[str, Any]) -> str:
    """Return the source of the data as JSON: the record's params of the data, whose secrets are hidden."""
    data = {key.removeprefix("data."): value for key, value in params.items() if key.startswith("data.")}
    return json.dumps({key: value for key, value in data.items() if key not in LOADING})[:SOURCE_LENGTH]


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
            if entry.kind == DATASETS:
                _send_datasets(entry.content, remote)
            elif entry.kind == MODEL:
                _send_model(entry.content, record, remote, find)
        except Exception as error:
            if not is_refused(error) and getattr(error, "error_code", None) not in _UNKNOWN_THERE:
                raise
            remote.require_active()
            refused.append(f"{entry.kind}: {redact(str(error))[:300]}")
    return refused


def _send_datasets(content: Mapping[str, Any], remote: MlflowRun) -> None:
    """Send a run's data sets. MLflow recognises a repeat, and stores nothing twice."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    roles: dict[tuple[str, str], list[str]] = {}
    profiles: dict[tuple[str, str], str] = {}
    for role, each in content["sets"].items():
        whole = str(each["fingerprint"] or f"unknown-{each['size']}")  # no sample could be looked at
        key = str(each["name"])[:NAME_LENGTH], whole[:DIGEST_LENGTH]
        roles.setdefault(key, []).append(role)  # of two that are the same, MLflow would drop one
        profiles[key] = json.dumps({"num_rows": each["size"], "fingerprint": whole})
    inputs = [
        DatasetInput(
            Dataset(*key, SOURCE_TYPE, content["source"], None, profiles[key]),
            [InputTag(_CONTEXT, " and ".join(roles[key]))],
        )
        for key in roles
    ]
    if inputs:
        remote.client.log_inputs(remote.run_id, inputs)


def _send_model(
    content: Mapping[str, Any], record: RunRecord, remote: MlflowRun, find: Callable[[str], str | None]
) -> None:
    """Register a checkpoint, unless it is already, and have its run, and the run that records it, show it.

    Args:
        find: gives MLflow's id of another run of the record's experiment; None when it is not there.
    """
    from mlflow.entities import LoggedModelStatus

    owner = content["run_id"] or record.run_id
    source = find(owner) if content["run_id"] else remote.run_id
    tags = _tags(content, owner)
    model = _find(tags, remote) or remote.client.create_logged_model(
        remote.experiment_id, _name(record, content), source or remote.run_id, tags, None, MODEL_TYPE
    )
    if str(model.status) != str(LoggedModelStatus.READY):  # new, or its registration was cut short
        _add_description(model, remote)
        remote.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    remote.client.set_logged_model_tags(model.model_id, tags)
    for run_id in dict.fromkeys([remote.run_id, source or remote.run_id]):
        _show(model.model_id, run_id, content["step"], remote)
    if source is not None:
        _add_metrics(model.model_id, source, content, remote)


def _tags(content: Mapping[str, Any], owner: str) -> dict[str, str]:
    tags = {
        _IS_EXTERNAL: "true",
        metrics.CHECKPOINT_URI: content["uri"],
        metrics.CHECKPOINT_SHA256: content["sha256"],
        metrics.CHECKPOINT_STEP: str(content["step"]),
        metrics.RUN_ID: owner,
    }
    return clean_tags(tags)


def _name(record: RunRecord, content: Mapping[str, Any]) -> str:
    run = re.sub(r"[^\w -]", "-", record.title or record.name)[:_NAME_LENGTH]
    return f"{run}-step-{content['step']}"


def _find(tags: Mapping[str, str], remote: MlflowRun) -> "LoggedModel | None":
    keys = (metrics.RUN_ID, metrics.CHECKPOINT_STEP, metrics.CHECKPOINT_SHA256)
    wanted = " AND ".join(f"tags.`{key}` = '{tags[key]}'" for key in keys)
    return next(iter(remote.client.search_logged_models([remote.experiment_id], wanted)), None)


def _add_description(model: "LoggedModel", remote: MlflowRun) -> None:
    """The file that MLflow's page wants to see before it lets a model be registered. Without it all else works."""
    from mlflow.models.utils import get_external_mlflow_model_spec

    try:
        with tempfile.TemporaryDirectory() as folder:
            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
            remote.client.log_model_artifacts(model.model_id, folder)
    except Exception as error:  # artifacts may live elsewhere, and trouble there must not hold up the rest
        logger.info("the checkpoint's description could not be uploaded: %s", redact(str(error)))


def _show(model_id: str, run_id: str, step: int, remote: MlflowRun) -> None:
    from mlflow.entities import LoggedModelOutput

    known = remote.client.get_run(run_id).outputs
    if all(output.model_id != model_id for output in (known.model_outputs if known else [])):
        remote.client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])


def _add_metrics(model_id: str, run_id: str, content: Mapping[str, Any], remote: MlflowRun) -> None:
    """The run has these points already; sent again with the same time, they are not stored twice."""
    from mlflow.entities import Metric

    values = [
        Metric(key, value, time_ms, content["step"], model_id=model_id, run_id=run_id)
        for key, (value, time_ms) in content["metrics"].items()
        if math.isfinite(value)
    ]
    if values:
        remote.client.log_batch(run_id, metrics=values)
