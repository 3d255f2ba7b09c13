"""The checkpoints that a run has kept, as MLflow's external models."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.engine.manifest import MANIFEST, numbered
from paceline.storage.address import RunStore
from paceline.tracking.datasets_and_models import CheckpointModel
from paceline.tracking.metric_points import MetricPoint

WEIGHTS = "model.safetensors"
MEASURED = ("train/", "val/")
"""How the keys begin of what says how good a model is, rather than how it was trained."""


def kept_checkpoints(folder: Path, points: Iterable[MetricPoint], run_id: str = "") -> list[CheckpointModel]:
    """The checkpoints in a run's folder of them, the newest first; by their manifests, without reading the weights.

    Args:
        points: all that were recorded of the run: those of a checkpoint's own step go with it.
        run_id: Paceline's id of the run, where another one is to tell of them.
    """
    kept = {step: (path.as_uri(), digest) for step, path in numbered(folder) if (digest := _weights_digest(path))}
    return _models(kept, points, run_id)


def stored_checkpoints(run: RunStore, points: Iterable[MetricPoint], run_id: str = "") -> list[CheckpointModel]:
    """The same for a run in an object store.

    Raises:
        EnvironmentFault: the store cannot be used.
    """
    from paceline.storage.stored_checkpoints import StoredCheckpoints

    found = StoredCheckpoints(run).kept()
    return _models({step: (place, digest) for step, place, data in found if (digest := _digest(data))}, points, run_id)


def _models(kept: Mapping[int, tuple[str, str]], points: Iterable[MetricPoint], run_id: str) -> list[CheckpointModel]:
    values: dict[int, dict[str, tuple[float, int]]] = defaultdict(dict)
    for point in points:
        if point.step in kept and point.key.startswith(MEASURED) and not point.is_infinite:
            values[point.step][point.key] = point.value, point.timestamp_ms
    return [CheckpointModel(step, uri, digest, values[step], run_id) for step, (uri, digest) in kept.items()]


def _weights_digest(checkpoint: Path) -> str:
    """As the manifest has it; empty for a folder whose manifest cannot be read, which is no checkpoint."""
    try:
        return _digest((checkpoint / MANIFEST).read_bytes())
    except OSError:
        return ""


def _digest(manifest: bytes) -> str:
    try:
        return str(json.loads(manifest)["files"][WEIGHTS]["sha256"])
    except (ValueError, KeyError, TypeError):
        return ""
