"""Rules that end a sweep early: a target is reached, nobody reports a metric, or a disk stays full."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from paceline.config.constraints import Constraint
from paceline.full_disk import has_room
from paceline.sweeps.results.ranking import MEASURES, Objective, with_violations
from paceline.sweeps.trial import Trial
from paceline.tracking.costs import Goal

EVALUATED = "val/"
"""Prefix of metrics that every evaluation reports."""
MOST_IN_A_ROW = 2
"""Trials that find a disk full, with none between them that finished, at which the sweep stops."""
_NEVER_REPORTED = ("sweep.metric: no trial reports", "sweep.constraints: no trial reports")
"""Beginnings of the reason where a metric of the objectives, and where one of the constraints, is never reported."""


def is_hopeless(fault: str) -> bool:
    """Return True if a sweep that could not continue for this reason never can: it needs another config."""
    return fault.startswith(_NEVER_REPORTED)


def _is_of_evaluation(name: str, known: Iterable[str]) -> bool:
    """Return True if the first evaluation would have reported a metric: other metrics may be logged at any later step.

    One without a prefix is such a metric when the evaluation reported it with its prefix.
    """
    return name.startswith(EVALUATED) or f"{EVALUATED}{name}" in known


@dataclass(frozen=True)
class SweepRules:
    """The part of the sweep's config that the coordinator needs."""

    objectives: tuple[Objective, ...]
    slots: int
    max_failures: int
    fresh_processes: bool
    """True if each trial gets new processes."""
    target: float | None = None
    """Value of the first objective at which the sweep ends, once a trial reaches it."""
    trial_seconds: float | None = None
    """Maximum seconds of a trial on worker groups."""
    constraints: tuple[Constraint, ...] = ()
    """Constraints that the best trial has to satisfy."""
    goal: Goal | None = None
    """Goal whose cost is reported."""

    def never_reported(self, trial: Trial, reported: Collection[str]) -> str:
        """Return the reason why trials cannot be compared, or empty text if they can: a trial has finished, or was
        evaluated, without a metric of the sweep that no other trial has either. A non-finite value counts as reported.

        Args:
            reported: names of the metrics of all trials.
        """
        goals = {name for name, _ in self.objectives}
        compared = dict.fromkeys([*(name for name, _ in self.objectives), *(own.metric for own in self.constraints)])
        if all(name in trial.metrics or name in MEASURES for name in compared):
            return ""
        known = {*reported, *trial.metrics, *MEASURES}
        if trial.state == "finished":
            absent = (name for name in compared if name not in known)
        elif any(name.startswith(EVALUATED) for name in trial.metrics):
            absent = (name for name in compared if name not in known and _is_of_evaluation(name, known))
        else:
            return ""
        name = next(absent, None)
        if name is None:
            return ""
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        start = _NEVER_REPORTED[name not in goals]
        return f"{start} {name!r} ({hint}reported: {', '.join(sorted(known))})"

    def target_reached(self, trial: Trial) -> str:
        """Return why the sweep is over because of a trial; empty when it is not."""
        metric, mode = self.objectives[0]
        value = trial.metrics.get(metric)
        if trial.state != "finished" or self.target is None or value is None:
            return ""
        if with_violations(trial, self.constraints).broken:
            return ""
        is_reached = value >= self.target if mode == "max" else value <= self.target
        return f"trial {trial.id} reached the target: {metric} is {value:.6g}" if is_reached else ""


class DiskRoom:
    """Counts consecutive trials that found a disk full.

    The sweep continues after the first one, which may have needed more room than others, or have run on another node.
    It stops at once if the disk of the sweep's own folder is full.
    """

    def __init__(self, folder: Path, probe: Callable[[Path], bool] = has_room) -> None:
        self.reason = ""
        """Reason why the newest affected trial is left for a later launch; empty if none is."""
        self._folder, self._probe = folder, probe
        self._in_a_row = 0

    def was_found(self) -> None:
        """Note that a trial has finished and saved its state."""
        self._in_a_row = 0

    def was_lacking(self, reason: str) -> bool:
        """Count a trial that found a disk full; returns True if the sweep is to stop."""
        self.reason = reason
        self._in_a_row += 1
        return self._in_a_row >= MOST_IN_A_ROW or not self._probe(self._folder)
