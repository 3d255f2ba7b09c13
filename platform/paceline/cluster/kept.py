"""The checkpoints that a run has kept, as MLflow is told of them."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from paceline.engine.manifest import MANIFEST, numbered
from paceline.tracking.models import CheckpointModel
from paceline.tracking.points import Point

WEIGHTS = "model.safetensors"
MEASURED = ("train/", "val/")
"""How the keys begin of what says how good a model is, rather than how it was trained."""


def kept_checkpoints(folder: Path, points: Iterable[Point], run_id: str = "") -> list[CheckpointModel]:
    """The checkpoints in a run's folder of them, the newest first; by their manifests, without reading the weights.

    Args:
        points: all that were recorded of the run: those of a checkpoint's own step go with it.
        run_id: Paceline's id of the run, where another one is to tell of them.
    """
    kept = {step: (path, digest) for step, path in numbered(folder) if (digest := _weights_digest(path))}
    values: dict[int, dict[str, tuple[float, int]]] = defaultdict(dict)
    for point in points:
        if point.step in kept and point.key.startswith(MEASURED) and not point.is_infinite:
            values[point.step][point.key] = point.value, point.timestamp_ms
    return [CheckpointModel(step, path.as_uri(), digest, values[step], run_id) for step, (path, digest) in kept.items()]


def _weights_digest(checkpoint: Path) -> str:
    """As the manifest has it; empty for a folder whose manifest cannot be read, which is no checkpoint."""
    try:
        return str(json.loads((checkpoint / MANIFEST).read_bytes())["files"][WEIGHTS]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
