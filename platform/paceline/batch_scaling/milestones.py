"""Samples to a target, estimated from several values of the metric on the way to it.

The evaluation that reaches a target first is partly an accident: near its end a training improves by less, from one
evaluation to the next, than these scatter. So the samples to it are estimated from those to each of several values, the
milestones, that the config as it is passes on the last part of its way:

    smoothed samples = geometric mean over the milestones of (samples to it / the share of the way that it stands for)

That assumes that two trainings differ by the same ratio over this part of the way. Over 16 seeds, with three batch
sizes of timm's `test_efficientnet` and two of `configs/mnist_batch_lr.yaml` against the own one, the logarithm of the
ratio of the samples then has 0.52 times the variance on average, and its mean differs from that of the samples to the
target itself by 0.00 to 0.06.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import geometric_mean
from typing import Any

from paceline.batch_scaling.critical_batch import LossCurve
from paceline.batch_scaling.findings import TargetMetric
from paceline.batch_scaling.segment import is_reached
from paceline.batch_scaling.target import reached_in

SHARES = (0.6, 0.7, 0.8, 0.9)
"""Shares of the samples to the target after which the value of the config as it is, made monotone, is a milestone."""

Passed = tuple[int, ...]
"""Samples to each milestone, the target last."""


def milestones_of(target: TargetMetric, own: Mapping[str, Any]) -> tuple[TargetMetric, ...]:
    """Return the milestones: up to four values, and the target last.

    Args:
        own: answer to a training of the config as it is that has reached the target, see `segment.train_segment`.
    """
    values = [(samples, metrics.get(target.name)) for samples, metrics in own["evaluations"]]
    finite = [(samples, value) for samples, value in values if value is not None and isfinite(value)]
    reached = reached_in(own, target)
    assert reached is not None
    if len(finite) < 2:
        return (target,)
    sign = -1.0 if target.mode == "max" else 1.0  # a curve falls
    curve = LossCurve.of([(samples, sign * value) for samples, value in finite])
    found = dict.fromkeys(sign * curve.loss_at(share * reached) for share in SHARES)
    before = [value for value in found if not is_reached(value, target.value, target.mode)]
    return *(replace(target, value=value) for value in before), target


def passed_in(milestones: Sequence[TargetMetric], trained: Mapping[str, Any]) -> Passed | None:
    """Return the samples of a training to each milestone; None if it has not reached the target."""
    if reached_in(trained, milestones[-1]) is None:
        return None
    # what is beyond the target is beyond each milestone
    return tuple(samples for each in milestones if (samples := reached_in(trained, each)) is not None)


def shares_of(own: Sequence[Passed]) -> list[float]:
    """Return the samples that the config as it is takes to each milestone, over those to the target: the geometric mean
    over its trainings."""
    return [geometric_mean(each[number] / each[-1] for each in own) for number in range(len(own[0]))]


def smoothed_samples(passed: Passed, shares: Sequence[float]) -> float:
    """Return the estimated samples to the target.

    The geometric mean over the trainings that the shares are from is that of their samples to the target itself.
    """
    return geometric_mean(samples / share for samples, share in zip(passed, shares, strict=True))
