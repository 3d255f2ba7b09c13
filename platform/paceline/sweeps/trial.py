"""Trials of a sweep: the plan and the state of each one, and the driver's table of all of them."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from paceline.config.constraints import Violations, broken_by
from paceline.reports.text import number_text
from paceline.sweeps.results import labels
from paceline.sweeps.states import ENDED, NOT_TRAINED, TrialState

SHOWN_METRICS = 3
"""Metrics in the text of a trial, validation metrics first."""

JSON_FIELDS = ("id", "params", "state", "reason", "metrics", "weights_sha256")


@dataclass(frozen=True)
class PlannedTrial:
    """A trial's id, and the values that it tries."""

    id: str
    """Names the trial within its sweep: `0007`, in the order in which the trials were made."""
    params: Mapping[str, Any]
    """Dotted key to value: the axes of `sweep.space`, and `seed` where trials are repeated over seeds."""

    @property
    def setting(self) -> dict[str, Any]:
        """Params without the seed, which all seeds of one setting share."""
        return {key: value for key, value in self.params.items() if key != "seed"}


@dataclass(frozen=True, repr=False)
class Trial(PlannedTrial):
    """A trial, and the result."""

    state: TrialState = "pending"
    reason: str = ""
    """The reason why it ended as it did; empty when it finished."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    weights_sha256: str = ""
    steps: int = 0
    """Optimizer steps done."""
    total_steps: int | None = None
    """Optimizer steps of the whole training; None while unknown."""
    samples: int = 0
    """Number of training samples consumed; samples that several attempts trained on count once."""
    samples_per_second: float = 0.0
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Time on a worker group, in seconds."""
    attempts: int = 0
    """Counts its starts on a worker group; more than one after a kill, or a pause."""
    checkpoint: str = ""
    """Folder of its newest checkpoint."""
    mlflow_run_id: str = ""
    violations: Violations = field(default_factory=dict)
    """Amount by which the trial violates each constraint of the sweep; known once it has ended."""

    @property
    def broken(self) -> list[str]:
        """Constraints of the sweep that it violates, such as `val/loss < 0.5`."""
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


def planned_order(trial: Trial) -> tuple[int, str]:
    """Sorts trials in the order in which they were planned."""
    return len(trial.id), trial.id


def axis_keys(trials: Iterable[Trial]) -> list[str]:
    """The dotted keys that the trials vary, the seed left out, in the order in which they first come up."""
    return list(dict.fromkeys(key for trial in trials for key in trial.params if key != "seed"))


class TrialTable(Sequence[Trial]):
    """The trials in the order of their plan. Changes are counted as they come, so that no look costs O(n)."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._places: list[tuple[int, str]] = []
        self._trials: dict[str, Trial] = {}
        self.counts: Counter[str] = Counter()
        """Number of trials in each state."""
        self.num_infeasible = 0
        """Number of finished trials that break a constraint."""
        self.open: dict[str, Trial] = {}
        """Trials that have not ended, by id."""
        self.ended_ids: list[str] = []
        """Ids of the trials that have ended, in the order in which they ended."""
        self.update(trials)

    def update(self, changed: Iterable[Trial]) -> None:
        """Add new trials, and update those that have changed."""
        for trial in changed:
            known = self._trials.get(trial.id)
            if known is None:
                self._places.insert(bisect_left(self._places, planned_order(trial)), planned_order(trial))
            else:
                self.counts[known.state] -= 1
                self.num_infeasible -= known.is_feasible is False
            self.counts[trial.state] += 1
            self.num_infeasible += trial.is_feasible is False
            self._trials[trial.id] = trial
            if trial.state not in ENDED:
                self.open[trial.id] = trial
            elif known is None or known.state not in ENDED:
                self.open.pop(trial.id, None)
                self.ended_ids.append(trial.id)

    def by_id(self, trial_id: str) -> Trial:
        """Return the trial with an id.

        Raises:
            KeyError: no trial has this id.
        """
        return self._trials[trial_id]

    @property
    def num_ended(self) -> int:
        """Number of trials that have ended."""
        return len(self.ended_ids)

    @property
    def num_trained(self) -> int:
        """Number of trials that have ended, without those that were not trained."""
        return self.num_ended - self.num_untrained

    @property
    def num_untrained(self) -> int:
        """Number of trials that ended before they began."""
        return sum(self.counts[state] for state in NOT_TRAINED)

    @property
    def work_done(self) -> float:
        """Trials done, those that were not trained left out, and the shares done of those that run or wait."""
        shares = (min(trial.steps / trial.total_steps, 1.0) for trial in self.open.values() if trial.total_steps)
        return self.num_trained + sum(shares)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        if isinstance(index, slice):
            return [self._trials[trial_id] for _, trial_id in self._places[index]]
        return self._trials[self._places[index][1]]
