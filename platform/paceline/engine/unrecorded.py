"""Metrics that were not durable yet when a checkpoint was saved, and are kept in it: see `cluster.metric_buffer`."""

import json
from pathlib import Path
from typing import Any

UNRECORDED = "unrecorded.json"
"""Name of the file that holds them in a checkpoint. Most checkpoints have no such file."""


def as_file(run: str, metrics: list[Any]) -> bytes:
    """Return the content of the file.

    Args:
        run: name of the run's folder.
        metrics: result of `Reporter.unrecorded`.
    """
    return json.dumps({"run": run, "metrics": metrics}).encode()


def metrics_of(checkpoint: Path) -> list[Any]:
    """Return the unrecorded metrics that a checkpoint keeps for the run in whose folder it lies.

    Empty if it has none, or if they belong to another run, from which the checkpoint was copied.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged.
    """
    file = checkpoint / UNRECORDED
    kept = json.loads(file.read_bytes()) if file.exists() else {}
    return list(kept["metrics"]) if kept.get("run") == checkpoint.parent.parent.name else []
