"""The target of a study, and when the config as it is reaches it."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from paceline.batch_scaling.critical_batch import LOSS, LossCurve
from paceline.batch_scaling.findings import StudyFailed, TargetMetric
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.segment import is_reached

OWN_TARGET_SHARE = 0.8
"""Without a target, the loss after this share of the config's length of training is it."""


def target_of(plan: StudyPlan, own: Mapping[str, Any]) -> TargetMetric:
    """Return the target, which the config as it is reaches.

    Args:
        own: the answer to its training, see `segment.train_segment`.

    Raises:
        StudyFailed: it never reaches it, has reached it before it was worth a study, or the metric does not exist.
    """
    evaluations = own["evaluations"]
    if not evaluations:
        raise StudyFailed("the config as it is has no evaluation: give it a validation set", "no-evaluation")
    target = plan.target or _own_target(evaluations)
    names = sorted(evaluations[-1][1])
    if target.name not in names:
        raise StudyFailed(
            f"the target's metric does not exist: {target.name} is not among {', '.join(names)}. Choose one of "
            "them with --target or scale.target",
            "target-unknown",
            metric=target.name,
        )
    values = [(samples, metrics[target.name]) for samples, metrics in evaluations if target.name in metrics]
    reached = reached_in(own, target)
    if reached is None:
        best = (max if target.mode == "max" else min)(value for _, value in values)
        raise StudyFailed(
            f"the config as it is never reaches the target {target.text}: the best {target.name} in "
            f"{own['samples']:,} samples is {best:.6g}. Train longer, choose a target that it reaches, or say with "
            "scale.mode which way is better",
            "target-not-reached",
            best=best,
        )
    if (reached == values[0][0] and len(values) > 1) or (plan.target is not None and len(values) == 1):
        raise StudyFailed(
            f"the target {target.text} is reached at once: {target.name} is {values[0][1]:.6g} after "
            f"{values[0][0]:,} samples. Choose a target that takes training",
            "target-at-once",
            first=values[0][1],
        )
    return target


def reached_in(trained: Mapping[str, Any], target: TargetMetric) -> int | None:
    """Return the samples after which a training was evaluated at its target for the first time."""
    evaluations = trained["evaluations"]
    reached = (each for each, metrics in evaluations if is_reached(metrics.get(target.name), target.value, target.mode))
    return next(reached, None)


def _own_target(evaluations: Sequence[tuple[int, Mapping[str, float]]]) -> TargetMetric:
    """Return the loss after most of the training, made monotone: other seeds and batches reach it in time.

    Raises:
        StudyFailed: there is no such loss.
    """
    if len(evaluations) < 2:
        raise StudyFailed(
            f"the training of {evaluations[-1][0]:,} samples is too short to be studied: it is evaluated at its end "
            "alone. Train longer",
            "target-at-once",
        )
    losses = [(samples, metrics[LOSS]) for samples, metrics in evaluations if LOSS in metrics]
    if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
        last = evaluations[-1][1]
        others = sorted(name for name, value in last.items() if name != LOSS and isfinite(value))
        hint = f"choose one of {', '.join(others)} with --target" if others else "no other metric is finite either"
        raise StudyFailed(f"there is no finite {LOSS} to take as the target: {hint}", "target-unknown")
    return TargetMetric(LOSS, LossCurve.of(losses).loss_at(OWN_TARGET_SHARE * losses[-1][0]), "min")
