"""Metrics that were not durable yet when a checkpoint was put in place: it keeps them, see `cluster.metric_buffer`."""

import json
from pathlib import Path
from typing import Any

UNRECORDED = "unrecorded.json"
"""The file of a checkpoint that holds them. Most have no such file."""


def as_file(run: str, metrics: list[Any]) -> bytes:
    """What the file holds.

    Args:
        run: name of the run's folder.
        metrics: as `Reporter.unrecorded` gives them.
    """
    return json.dumps({"run": run, "metrics": metrics}).encode()


def metrics_of(checkpoint: Path) -> list[Any]:
    """What a checkpoint keeps of the run in whose folder it lies. One that comes from another run has that one's.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    file = checkpoint / UNRECORDED
    kept = json.loads(file.read_bytes()) if file.exists() else {}
    return list(kept["metrics"]) if kept.get("run") == checkpoint.parent.parent.name else []
