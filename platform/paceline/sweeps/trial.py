"""Trials of a sweep: plan, state and result; and the progress of all of them."""

import math
from collections.abc import Mapping, Sequence
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


def trained(view: Sequence[Trial]) -> int:
    """How many trials have ended, without those that were not trained."""
    return sum(trial.state in ENDED and trial.state not in NOT_TRAINED for trial in view)


def work_done(view: Sequence[Trial]) -> float:
    """Trials done, those that were not trained left out, and the shares done of those that run or wait."""
    return trained(view) + sum(
        min(trial.steps / trial.total_steps, 1.0) for trial in view if trial.state not in ENDED and trial.total_steps
    )


class Beginning:
    """When the first trial of this launch began, and what was done by then.

    Trials that an earlier launch has left have had their attempts and steps before.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.work = 0.0
        self.trained = 0
        self._left: dict[str, tuple[int, int]] | None = None

    def is_over(self, view: Sequence[Trial], now: float) -> bool:
        """Whether a trial has begun; takes note of the time when it has."""
        if self.since is not None:
            return True
        if self._left is None:
            self._left = {trial.id: (trial.attempts, trial.steps) for trial in view}
        if any((trial.attempts, trial.steps) > self._left.get(trial.id, (0, 0)) for trial in view):
            self.since, self.work, self.trained = now, work_done(view), trained(view)
        return self.since is not None
