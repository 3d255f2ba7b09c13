"""Makes exported files a version of a registered model in MLflow; the same content again is the same version."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.redaction import redact, without_credentials
from paceline.tracking import metrics
from paceline.tracking.mlflow_connection import mlflow_id, open_store
from paceline.tracking.run_record import RunRecord, address_of, clean_tags
from paceline.tracking.tracking_uri import is_http

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

NAME_PATTERN = r"[^/:'\"`%]{1,200}"
_EXISTS = "RESOURCE_ALREADY_EXISTS"


@dataclass(frozen=True)
class Version:
    """A version in the model registry."""

    name: str
    version: int
    is_new: bool
    """True if it was made now; the same content under the same name makes no other one."""
    url: str | None
    """Its page, where a server shows it."""


def check_name(name: str) -> None:
    """Check that MLflow takes the name of a registered model.

    Raises:
        ConfigError: it does not.
    """
    if not re.fullmatch(NAME_PATTERN, name) or not name.strip(". "):
        hint = "write 1 to 200 characters, without / : % and quotes"
        raise ConfigError([Problem("register", f"{name!r} cannot be the name of a registered model", hint=hint)])


def register(
    name: str,
    folder: Path,
    place: str,
    tracking: Path,
    sha256: str,
    step: int,
    uri: str | None = None,
    description: Callable[[int], str] = lambda version: "",
) -> Version:
    """Upload the files of a folder as artifacts of a run, and make them a version of a registered model.

    Args:
        folder: holds the files.
        place: the artifacts' folder within the run.
        tracking: the folder of the run's recorder.
        sha256: tells one content from another; a version that has it is not made again.
        step: the optimizer step that the files come from.
        uri: MLflow's address; by default the one that the run was recorded at.
        description: Markdown for the page of a new version, by its number.

    Raises:
        EnvironmentFault: the run is not in MLflow, or MLflow does not take the files.
    """
    try:
        record = RunRecord.load(tracking, uri)
    except (OSError, ValueError, TypeError, KeyError):
        reason = f"there is no record of the run in {tracking}, so that it cannot be found in MLflow"
        raise EnvironmentFault(reason, "no-record", folder=tracking) from None
    record = replace(record, uri=address_of(record, uri))
    try:
        client = open_store(record.uri)
        run_id = _run_id(record, client, tracking)
        found = _find(client, name, run_id, sha256)
        version = found or _create(client, name, folder, place, run_id, _tags(record, sha256, step))
        if found is None and (text := description(int(version.version))):
            client.update_model_version(name, version.version, redact(text))
    except EnvironmentFault:
        raise
    except Exception as error:  # MLflow's own errors, and those of what it connects and stores with
        reason = redact(f"the model cannot be registered at {record.uri}: {error}")
        raise EnvironmentFault(reason, "model-not-registered", uri=redact(record.uri)) from error
    return Version(name, int(version.version), found is None, _page(record.uri, name, int(version.version)))


def _page(uri: str, name: str, version: int) -> str | None:
    """Return the page of a version, where a server shows it, without the address's credentials."""
    if not is_http(uri):
        return None
    return f"{without_credentials(uri).rstrip('/')}/#/models/{quote(name, safe='')}/versions/{version}"


def _run_id(record: RunRecord, client: "MlflowClient", tracking: Path) -> str:
    """MLflow's id of the run. The store is asked: what the folder remembers may be that of another one."""
    run_id = mlflow_id(client, record)
    if run_id is None:
        hint = f"send it there with `paceline sync {tracking.parent}`"
        reason = f"the run {record.name!r} is not in MLflow at {redact(record.uri)}: {hint}"
        raise EnvironmentFault(reason, "run-not-in-mlflow", run=record.name, uri=redact(record.uri))
    return run_id


def _tags(record: RunRecord, sha256: str, step: int) -> dict[str, str]:
    tags = {
        metrics.CHECKPOINT_SHA256: sha256,
        metrics.CHECKPOINT_STEP: str(step),
        metrics.RUN_ID: record.run_id,
    }
    return clean_tags(tags)


def _find(client: "MlflowClient", name: str, run_id: str, sha256: str) -> "ModelVersion | None":
    versions = client.search_model_versions(f"name = '{name}' AND run_id = '{run_id}'")
    same = [each for each in versions if each.tags.get(metrics.CHECKPOINT_SHA256) == sha256]
    return min(same, key=lambda each: int(each.version), default=None)


def _create(
    client: "MlflowClient", name: str, folder: Path, place: str, run_id: str, tags: dict[str, str]
) -> "ModelVersion":
    client.log_artifacts(run_id, str(folder), place)
    try:
        client.create_registered_model(name)
    except Exception as error:
        if getattr(error, "error_code", None) != _EXISTS:
            raise
    return client.create_model_version(name, f"runs:/{run_id}/{place}", run_id, tags, await_creation_for=0)
