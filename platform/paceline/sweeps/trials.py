"""One trial of a sweep: what it is, how it stands, and how it ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TrialState = Literal[
    "pending", "running", "paused", "finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom"
]
ENDED = ("finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom")
"""The states that a trial stays in."""
TROUBLE = ("failed", "oom", "diverged")
"""Those that make the command line answer 4."""

JSON_FIELDS = ("id", "overrides", "state", "reason", "metrics", "weights_sha256")


@dataclass(frozen=True)
class Point:
    """What a trial is to try out."""

    id: str
    """Names the trial within its sweep: `0007`, in the order in which the points were made."""
    overrides: Mapping[str, Any]
    """Dotted key to value: the axes of `sweep.space`, and `seed` where points are repeated over seeds."""

    @property
    def setting(self) -> dict[str, Any]:
        """The overrides without the seed: what the seeds of one point have in common."""
        return {key: value for key, value in self.overrides.items() if key != "seed"}


@dataclass(frozen=True)
class Trial:
    """A point, and what came of it."""

    id: str
    overrides: Mapping[str, Any]
    state: TrialState = "pending"
    reason: str = ""
    """Why it ended as it did; empty when it finished."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    weights_sha256: str = ""
    steps: int = 0
    """Optimizer steps done."""
    total_steps: int | None = None
    """Of the whole training; None while not known."""
    samples: int = 0
    """Training samples consumed, those of all attempts counted once."""
    samples_per_second: float = 0.0
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Time on a worker group, in seconds."""
    attempts: int = 0
    """How often it was begun on a worker group; more than once after a kill, or a pause."""
    checkpoint: str = ""
    """Folder of its newest checkpoint."""
    mlflow_run_id: str = ""

    @property
    def setting(self) -> dict[str, Any]:
        """The overrides without the seed: what the seeds of one point have in common."""
        return {key: value for key, value in self.overrides.items() if key != "seed"}

    def to_json(self) -> dict[str, Any]:
        """The trial as plain JSON values, as `paceline sweep --json` prints it."""
        fields = {key: getattr(self, key) for key in JSON_FIELDS}
        # JSON knows no NaN
        metrics = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        return {**fields, "overrides": dict(self.overrides), "metrics": metrics}
