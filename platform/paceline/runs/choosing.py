"""Choice of a run's best checkpoint: by a metric that was measured at the checkpoint's own step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cluster.kept_checkpoints import MEASURED, remembered_values
from paceline.engine.manifest import BrokenCheckpoint, numbered, verify
from paceline.errors import EnvironmentFault
from paceline.runs.finding import FoundRun
from paceline.sweeps.results.ranking import Objective
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint

DEFAULT: Objective = (metrics.VAL_LOSS, "min")


@dataclass(frozen=True)
class Chosen:
    """A checkpoint, and the reason for choosing it."""

    folder: Path
    step: int
    """Optimizer step that it was saved at."""
    metrics: dict[str, float]
    """Metrics measured at that step."""
    why: str
    broken: tuple[str, ...] = ()
    """Descriptions of the broken checkpoints that were skipped."""
    missed: str = ""
    """Note that a better value was measured at a step without a kept checkpoint; empty if none was."""


def choose(found: FoundRun, points: Sequence[MetricPoint], objective: Objective = DEFAULT) -> Chosen:
    """See `_choose`. Of a run in an object store, only the chosen checkpoint is copied and compared."""
    if found.store is None:
        return _choose(found, points, objective, _whole(found))
    from paceline.storage.read_copies import bring

    there, broken = list(numbered(found.checkpoints)), list[str]()
    while True:
        chosen = _choose(found, points, objective, (there, broken))
        try:
            return replace(chosen, folder=bring(found.store, chosen.step))
        except BrokenCheckpoint as error:
            broken.append(f"step-{chosen.step} is broken: {error}")
            there = [each for each in there if each[0] != chosen.step]


def _choose(
    found: FoundRun,
    points: Sequence[MetricPoint],
    objective: Objective,
    checkpoints: tuple[list[tuple[int, Path]], list[str]],
) -> Chosen:
    """Choose the kept checkpoint with the best value; the newest if none was saved at a step with a value.

    Every byte of a checkpoint is compared with its manifest. Of equal values, the earliest step is chosen.

    Args:
        points: all points recorded for the run.
        objective: a metric and its direction, `min` or `max`.
        checkpoints: step and folder of each whole checkpoint, the newest first; and descriptions of the broken ones.

    Raises:
        EnvironmentFault: the run has no whole checkpoint, or has never had such a metric.
    """
    metric, mode = objective
    whole, broken = checkpoints
    if not whole:
        troubles = f": {'; '.join(broken)}" if broken else ""
        told = f"the {found} has no whole checkpoint in {found.checkpoints}{troubles}"
        raise EnvironmentFault(told, "no-checkpoint", path=found.checkpoints)
    points = [*_remembered(found.checkpoints, metric, points), *points]
    known = sorted({point.key for point in points})
    if metric not in known and objective != DEFAULT:
        told = f"the {found} has no metric {metric!r}; it has {', '.join(known) or 'none'}"
        raise EnvironmentFault(told, "unknown-metric", metric=metric, known=known)
    measured = [(step, path, _at(step, points, metric)) for step, path in whole]
    valued = [each for each in measured if math.isfinite(each[2].get(metric, math.nan))]
    if not valued:
        step, path, values = measured[0]
        reason = f"none was saved at a step at which {metric} was measured" if metric in known else f"no {metric}"
        why = "the only one" if len(whole) == 1 else f"the newest of {len(whole)}: {reason}"
        return Chosen(path, step, values, why, tuple(broken))
    sign = 1.0 if mode == "min" else -1.0
    step, path, values = min(valued, key=lambda each: (sign * each[2][metric], each[0]))
    word = "lowest" if mode == "min" else "highest"
    why = f"{metric} {values[metric]:.6g} at its step, the {word} of {_count(len(valued), len(whole))}"
    missed = _missed(found, points, objective, values[metric])
    return Chosen(path, step, values, why, tuple(broken), missed)


def _remembered(checkpoints: Path, metric: str, points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Return the metric at the best checkpoints of the run that this one extends."""
    logged = {point.step for point in points if point.key == metric}
    values = remembered_values(checkpoints, metric)
    return [MetricPoint(metric, value, step, 0) for step, value in values.items() if step not in logged]


def _missed(found: FoundRun, points: Sequence[MetricPoint], objective: Objective, value: float) -> str:
    """Return a note about a better value at a step without a checkpoint; empty if none is better.

    Steps with a broken checkpoint do not count: those checkpoints are reported separately.
    """
    metric, mode = objective
    sign, kept = 1.0 if mode == "min" else -1.0, {step for step, _ in numbered(found.checkpoints)}
    others = [each for each in points if each.key == metric and each.step not in kept and math.isfinite(each.value)]
    best = min(others, key=lambda each: (sign * each.value, each.step), default=None)
    if best is None or sign * best.value >= sign * value:
        return ""
    better = f"{metric} {best.value:.6g} at step {best.step} was better"
    return f"{better}, but no checkpoint of that step is kept; see checkpoint.keep"


def _whole(found: FoundRun) -> tuple[list[tuple[int, Path]], list[str]]:
    """Return the checkpoints that match their manifests, the newest first; and descriptions of the broken ones."""
    whole, broken = [], []
    for step, path in numbered(found.checkpoints):
        try:
            verify(path)
        except BrokenCheckpoint as error:
            broken.append(f"{path.name} is broken: {error}")
        else:
            whole.append((step, path))
    return whole, broken


def _at(step: int, points: Sequence[MetricPoint], metric: str) -> dict[str, float]:
    own = [point for point in points if point.step == step]
    return {point.key: point.value for point in own if point.key.startswith(MEASURED) or point.key == metric}


def _count(valued: int, whole: int) -> str:
    checkpoints = f"{whole} checkpoint{'' if whole == 1 else 's'} kept"
    return checkpoints if valued == whole else f"{valued} that have one, {checkpoints}"
