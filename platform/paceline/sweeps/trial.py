"""A trial of a sweep: plan, state and result."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.config.constraints import Violations, broken_by
from paceline.reports.text import number_text
from paceline.sweeps.results import labels

TrialState = Literal[
    "pending", "running", "paused", "finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom"
]
ENDED = ("finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom")
"""The states that a trial stays in."""
TROUBLE = ("failed", "oom", "diverged")
"""Those that make the command line answer 4."""
NOT_TRAINED = ("skipped", "predicted_oom")
"""Those of trials that ended before they began."""
SHOWN_METRICS = 3
"""Metrics that the text of a trial tells, those of the validation first."""

JSON_FIELDS = ("id", "params", "state", "reason", "metrics", "weights_sha256")


@dataclass(frozen=True)
class PlannedTrial:
    """What a trial is to try out."""

    id: str
    """Names the trial within its sweep: `0007`, in the order in which the trials were made."""
    params: Mapping[str, Any]
    """Dotted key to value: the axes of `sweep.space`, and `seed` where trials are repeated over seeds."""

    @property
    def setting(self) -> dict[str, Any]:
        """The params without the seed: what the seeds of one trial have in common."""
        return {key: value for key, value in self.params.items() if key != "seed"}


@dataclass(frozen=True, repr=False)
class Trial:
    """A trial, and the result."""

    id: str
    params: Mapping[str, Any]
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
    violations: Violations = field(default_factory=dict)
    """By constraint of the sweep, by how much the trial breaks it; known once it has ended."""

    @property
    def setting(self) -> dict[str, Any]:
        """The params without the seed: what the seeds of one trial have in common."""
        return {key: value for key, value in self.params.items() if key != "seed"}

    @property
    def broken(self) -> list[str]:
        """The constraints of the sweep that it breaks, such as `val/loss < 0.5`."""
        return broken_by(self.violations)

    @property
    def is_feasible(self) -> bool | None:
        """True if it has finished and keeps all constraints of the sweep; None while it has not finished."""
        return not self.broken if self.state == "finished" else None

    def to_json(self) -> dict[str, Any]:
        """The trial as plain JSON values, as `paceline sweep --json` prints it."""
        fields = {key: getattr(self, key) for key in JSON_FIELDS}
        fields |= {"feasible": self.is_feasible, "broken": self.broken}
        # JSON knows no NaN
        metrics = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        return {**fields, "params": dict(self.params), "metrics": metrics}

    def __repr__(self) -> str:
        setting = labels.setting_text(self.params, labels.short_names(self.params))
        first = sorted(self.metrics, key=lambda name: not name.startswith("val/"))[:SHOWN_METRICS]
        metrics = ", ".join(f"{name} {number_text(self.metrics[name])}" for name in first)
        reason = labels.shortened(" ".join(self.reason.split()), labels.LONGEST_REASON)
        parts = [f"{self.id} {labels.outcome_text(self.state, self.broken)}", setting, metrics, reason]
        return f"<Trial {'; '.join(filter(None, parts))}>"
