"""The checkpoints that a run has kept: as MLflow's external models, and the best one of them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.engine.manifest import MANIFEST, STATE, numbered
from paceline.errors import EnvironmentFault
from paceline.storage.address import RunStore, is_address, parse
from paceline.tracking.datasets_and_models import CheckpointModel
from paceline.tracking.metric_points import MetricPoint

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

WEIGHTS = "model.safetensors"
MEASURED = ("train/", "val/")
"""Prefixes of metrics that measure how good a model is, in contrast to those about the course of training."""


def kept_checkpoints(folder: Path, points: Iterable[MetricPoint], run_id: str = "") -> list[CheckpointModel]:
    """Return the checkpoints in a run's checkpoint folder, the newest first. Reads their manifests, not the weights.

    Args:
        points: all recorded points of the run; a checkpoint gets those of its own step.
        run_id: Paceline's id of the run, if another run reports the checkpoints.
    """
    kept = {step: (path.as_uri(), digest) for step, path in numbered(folder) if (digest := _weights_digest(path))}
    return _models(kept, points, run_id)


def stored_checkpoints(run: RunStore, points: Iterable[MetricPoint], run_id: str = "") -> list[CheckpointModel]:
    """Return the checkpoints of a run in an object store, as `kept_checkpoints` does for a folder.

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
    """Return the digest in the manifest; empty where that cannot be read, in a folder that is not a checkpoint."""
    try:
        return _digest((checkpoint / MANIFEST).read_bytes())
    except OSError:
        return ""


def _digest(manifest: bytes) -> str:
    try:
        return str(json.loads(manifest)["files"][WEIGHTS]["sha256"])
    except (ValueError, KeyError, TypeError):
        return ""


def remembered_values(folder: Path, metric: str) -> dict[int, float]:
    """Return the values of a metric, by step, at the best evaluations that the newest checkpoint in a folder remembers.

    An extended run remembers those of the run that it extends, though it records its own alone. Empty where another
    metric is monitored, or nothing can be read.
    """
    newest = next((path for _, path in numbered(folder)), None)
    if newest is None:
        return {}
    try:
        remembered = json.loads((newest / STATE).read_bytes())["components"]["best_checkpoints"]
        if remembered["metric"] != metric:
            return {}
        return {step: value for value, step in remembered["best"] if isfinite(value)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


@dataclass(frozen=True)
class BestCheckpoint:
    """The kept checkpoint with the best value of the monitored metric at its step."""

    step: int
    metric: str
    value: float
    checkpoint: str
    """Its folder, or its address in an object store."""


def best_checkpoint(
    config: "ExperimentConfig", points: Iterable[tuple[str, float, int]], folder: Path, newest: str
) -> BestCheckpoint | None:
    """Return the best kept checkpoint; None without `checkpoint.monitor`, or if none was saved at an evaluation.

    Args:
        points: key, value and step of everything that was logged.
        folder: of the run's checkpoints on this machine.
        newest: place of the newest checkpoint.
    """
    if config.checkpoint.objective is None or not newest:
        return None
    metric, mode = config.checkpoint.objective
    steps = {step for step, _ in numbered(folder)}
    # the newest value of a step that was trained twice is that of its checkpoint
    remembered = {
        step: value
        for step, value in remembered_values(folder, metric).items()
        if step in steps or is_whole(checkpoint_beside(newest, step))
    }
    logged = {step: value for key, value, step in points if key == metric and step in steps and isfinite(value)}
    values = {**remembered, **logged}
    if not values:
        return None
    sign = 1.0 if mode == "min" else -1.0
    step = min(values, key=lambda each: (sign * values[each], each))
    return BestCheckpoint(step, metric, values[step], checkpoint_beside(newest, step))


def is_whole(place: str) -> bool:
    """Return True if a checkpoint is there, whose writing has been completed."""
    if not is_address(place):
        return (Path(place) / MANIFEST).is_file()
    from paceline.storage.remote_folder import RemoteFolder

    try:
        return RemoteFolder(parse(place, "checkpoint")).read(MANIFEST) is not None
    except EnvironmentFault:
        return False


def checkpoint_beside(place: str, step: int) -> str:
    """Return the place of another checkpoint of the same run."""
    name = f"step-{step}"
    return str(parse(place, "checkpoint").parent / name) if is_address(place) else str(Path(place).parent / name)
