"""A run's checkpoints as MLflow's external models: it knows them by address and hash, and no weights are copied."""

import logging
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.run_record import RunRecord, clean_tags

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

    from paceline.tracking.mlflow_run import MlflowRun

logger = logging.getLogger(__name__)

KIND = "model"
"""Of the journal's entries about them."""
MODEL_TYPE = "checkpoint"
_IS_EXTERNAL = "mlflow.model.isExternal"
_NAME_LENGTH = 200


@dataclass(frozen=True)
class CheckpointModel:
    """A checkpoint that is kept."""

    step: int
    """Optimizer step that it was saved at."""
    uri: str
    """Address of its folder."""
    sha256: str
    """Of its file `model.safetensors`, as its manifest has it."""
    metrics: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What was measured at its step: by key the value, and when, in milliseconds since 1970."""
    run_id: str = ""
    """Paceline's id of the run that saved it; empty: the one that tells of it."""

    def entry(self) -> dict[str, Any]:
        """What the journal keeps, as JSON values."""
        return {**asdict(self), "uri": redact(self.uri), "metrics": {k: list(v) for k, v in self.metrics.items()}}


def send_model(
    content: Mapping[str, Any], record: RunRecord, remote: "MlflowRun", find: Callable[[str], str | None]
) -> None:
    """Register a checkpoint, unless it is already, and let its run, and the run that tells of it, show it.

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


def _find(tags: Mapping[str, str], remote: "MlflowRun") -> "LoggedModel | None":
    keys = (metrics.RUN_ID, metrics.CHECKPOINT_STEP, metrics.CHECKPOINT_SHA256)
    wanted = " AND ".join(f"tags.`{key}` = '{tags[key]}'" for key in keys)
    return next(iter(remote.client.search_logged_models([remote.experiment_id], wanted)), None)


def _add_description(model: "LoggedModel", remote: "MlflowRun") -> None:
    """The file that MLflow's page wants to see before it lets a model be registered. Without it all else works."""
    from mlflow.models.utils import get_external_mlflow_model_spec

    try:
        with tempfile.TemporaryDirectory() as folder:
            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
            remote.client.log_model_artifacts(model.model_id, folder)
    except Exception as error:  # artifacts may live elsewhere, and trouble there must not hold up the rest
        logger.info("the checkpoint's description could not be uploaded: %s", redact(str(error)))


def _show(model_id: str, run_id: str, step: int, remote: "MlflowRun") -> None:
    from mlflow.entities import LoggedModelOutput

    known = remote.client.get_run(run_id).outputs
    if all(output.model_id != model_id for output in (known.model_outputs if known else [])):
        remote.client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])


def _add_metrics(model_id: str, run_id: str, content: Mapping[str, Any], remote: "MlflowRun") -> None:
    """The run has these points already; sent again with the same time, they are not stored twice."""
    from mlflow.entities import Metric

    values = [
        Metric(key, value, time_ms, content["step"], model_id=model_id, run_id=run_id)
        for key, (value, time_ms) in content["metrics"].items()
        if math.isfinite(value)
    ]
    if values:
        remote.client.log_batch(run_id, metrics=values)
