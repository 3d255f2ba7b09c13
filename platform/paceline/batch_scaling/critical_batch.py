"""The critical batch size, measured directly: branched training (Merrill et al. 2025, arXiv:2505.23971).

From the start, and from checkpoints of the config as it is, branches train with some times the batch. One that has
the loss at its end that the config's own batch has after fewer samples has used its samples less efficiently:

    efficiency = samples that the config's own batch takes from the one loss to the other / samples of the branch

Branches from a checkpoint are evaluated with an average of their weights, and over their second half: the first steps
after a change are unlike those of a training that had that batch all along.

By the trade-off of McCandlish et al. 2018 (arXiv:1812.06162), the samples to a loss grow with the batch as
1 + B / B_crit if the learning rate is scaled with it. So, with B_0 the config's own batch

    efficiency(B) = (1 + B_0 / B_crit) / (1 + B / B_crit)

B_crit grows over training. The samples to the target are the sum over the stretches between the points where it was
measured, each of which has L_i samples with the config's own batch, and that is linear in B again:

    samples(B) = sum_i L_i / efficiency_i(B) = a + b B,        B_crit = a / b
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import geometric_mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LOSS = "val/loss"
"""The metric by which branches are compared."""
Rule = Literal["none", "sqrt", "linear", "adascale"]
"""Rule by which the learning rate is scaled with the batch size, see `optimizer.lr_scaling`."""
LEAST_EFFICIENCY = 0.02
"""Lower limit of a branch's efficiency, used for a branch that diverged or made no progress."""
LEAST_TELLING = 0.25
"""Least efficiency from the start that counts. Far beyond the critical batch size the trade-off does not hold: what a
training of a few dozen steps loses there says nothing about the batch sizes that may be used."""
LARGEST = 2.0**40
"""Upper end of the search for the critical batch size, in samples. A fit near it counts as infinite."""


@dataclass(frozen=True)
class Branch:
    """A stretch of training with a larger batch."""

    start_samples: int
    """Samples trained before the branch, with the config's own batch; 0 if it begins with the initial weights."""
    batch_size: int
    rule: Rule
    samples: int
    """Samples trained in the branch."""
    loss: float
    """Validation loss at the end of the branch; `inf` or NaN if it diverged."""
    efficiency: float
    """Efficiency relative to the config's own batch; 0 if the branch diverged or made no progress."""


@dataclass(frozen=True)
class CriticalBatch:
    """A critical batch size in samples."""

    size: float
    """Critical batch size for the samples to the target; `inf` if all tried batches are as efficient as the own one."""
    low: float
    high: float
    """Smallest (`low`) and largest (`high`) size over the points of training at which it was measured."""
    by_samples: tuple[tuple[int, float], ...]
    """Samples before each of these points, and the size measured there."""
    interval: tuple[float, float] | None = None
    """95 % interval of `size`; None if it is not known."""


class LossCurve:
    """The loss with the config's own batch over the samples, made monotone (isotonic regression)."""

    def __init__(self, samples: Sequence[int], losses: Sequence[float]) -> None:
        """Args:
        samples: of each evaluation, increasing; at least one.
        """
        from scipy.optimize import isotonic_regression

        self._samples = np.asarray(samples, dtype=np.float64)
        self._losses = isotonic_regression(np.asarray(losses, dtype=np.float64), increasing=False).x

    @classmethod
    def of(cls, losses: Sequence[tuple[int, float]]) -> "LossCurve":
        """Build the curve from the samples and the loss of each evaluation."""
        return cls([samples for samples, _ in losses], [loss for _, loss in losses])

    def loss_at(self, samples: float) -> float:
        """Return the loss after this number of samples."""
        return float(np.interp(samples, self._samples, self._losses))

    def samples_to(self, loss: float) -> float:
        """Return the samples after which the loss was this low; all samples of the curve if it never was."""
        if not isfinite(loss):
            return float(self._samples[0])
        return float(np.interp(-loss, -self._losses, self._samples))


def efficiency_of(curve: LossCurve, half: tuple[int, float], whole: tuple[int, float]) -> float:
    """Return the efficiency of the second half of a branch, from 0; slightly above 1 where it did better.

    Args:
        half: samples and loss in the middle of the branch.
        whole: the same at its end.
    """
    return max(0.0, (curve.samples_to(whole[1]) - curve.samples_to(half[1])) / (whole[0] - half[0]))


def branch_of(start_samples: int, curve: LossCurve, batch_size: int, rule: Rule, values: Mapping[str, Any]) -> Branch:
    """Return a branch from a checkpoint, compared with the curve.

    Args:
        curve: of the branch with the config's own batch from the same checkpoint.
        values: as `segment.train_segment` answers; the evaluations have a `val/loss`.
    """
    evaluations = losses_of(values)
    efficiency, loss, middle = 0.0, inf, start_samples + values["samples"] / 2
    if ended_finite(values):
        loss = evaluations[-1][1]
        # a loss that is not finite does not show the branch's progress
        before = [each for each in evaluations[:-1] if isfinite(each[1])]
        if before:
            half = min(before, key=lambda each: abs(each[0] - middle))
            efficiency = efficiency_of(curve, half, evaluations[-1])
    return Branch(start_samples, batch_size, rule, values["samples"], loss, efficiency)


def branch_from_start(
    curve: LossCurve, goals: Sequence[float], batch_size: int, rule: Rule, values: Mapping[str, Any]
) -> Branch:
    """Return a branch that begins with the initial weights, compared with the curve: its efficiency is the geometric
    mean of those at several losses, since a single one is partly an accident.

    Args:
        curve: of the config as it is, with the same seed.
        goals: these losses, falling. The branch ended at the last one, unless it was given up before; what it did not
            reach is compared at its last loss.
        values: as for `branch_of`.
    """
    efficiency, loss = 0.0, inf
    if ended_finite(values):
        evaluations = [each for each in losses_of(values) if isfinite(each[1])]
        samples, loss = evaluations[-1]
        own = LossCurve.of(evaluations)
        last = own.loss_at(samples)
        efficiency = geometric_mean(
            curve.samples_to(max(last, goal)) / (own.samples_to(goal) if last <= goal else samples) for goal in goals
        )
    return Branch(0, batch_size, rule, values["samples"], loss, efficiency)


def ended_finite(values: Mapping[str, Any]) -> bool:
    """Return True if a branch has a finite loss at its end."""
    losses = losses_of(values)
    return bool(losses) and not values["diverged"] and isfinite(losses[-1][1])


def losses_of(values: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return samples and loss of each evaluation that had one."""
    return [(samples, float(metrics[LOSS])) for samples, metrics in values["evaluations"] if LOSS in metrics]


def expected_efficiency(batch_size: float, own_batch_size: float, critical: float) -> float:
    """Return the efficiency that the trade-off expects; 1 for the config's own batch."""
    return (1 + own_batch_size / critical) / (1 + batch_size / critical)


def efficiencies(branches: Sequence[Branch]) -> dict[tuple[int, int], dict[Rule, float]]:
    """Return the efficiency of each rule, by the start and the batch size of the branches."""
    found: dict[tuple[int, int], dict[Rule, float]] = {}
    for branch in branches:
        rules = found.setdefault((branch.start_samples, branch.batch_size), {})
        rules[branch.rule] = max(branch.efficiency, LEAST_EFFICIENCY)
    return found


def best_rule(branches: Sequence[Branch], like: Branch) -> Rule:
    """Return the most efficient rule among branches with the start and the batch size of another one."""
    rules = efficiencies(branches)[like.start_samples, like.batch_size]
    return max(rules, key=lambda rule: rules[rule])


def smallest_untrainable(branches: Sequence[Branch]) -> float:
    """Return the smallest batch size none of whose branches has a finite loss at its end; `inf` if there is none."""
    trained = {branch.batch_size for branch in branches if isfinite(branch.loss)}
    return min((float(branch.batch_size) for branch in branches if branch.batch_size not in trained), default=inf)


def is_far_beyond(branches: Sequence[Branch], size: int) -> bool:
    """Return True if a batch size is so inefficient from the start that its branches do not count.

    The smallest one that was tried there always counts.
    """
    best = {tried: max(rules.values()) for (start, tried), rules in efficiencies(branches).items() if not start}
    return size in best and size > min(best) and best[size] < LEAST_TELLING


def critical_batch(branches: Sequence[Branch], own_batch_size: int, samples_to_target: int) -> CriticalBatch:
    """Fit the trade-off to the best branch of each batch size at each point of training, and add up what follows.

    Args:
        branches: at least one.
        samples_to_target: with the config's own batch.
    """
    failed = smallest_untrainable(branches)
    # a batch that cannot be trained at all does not show how much smaller ones lose
    trainable = [branch for branch in branches if branch.batch_size < failed] or branches
    trainable = [each for each in trainable if each.start_samples or not is_far_beyond(trainable, each.batch_size)]
    best = {place: max(rules.values()) for place, rules in efficiencies(trainable).items()}
    starts = sorted({start for start, _ in best})
    by_samples = tuple(
        (
            start,
            fitted_critical_batch({size: each for (at, size), each in best.items() if at == start}, own_batch_size),
        )
        for start in starts
    )
    constant = slope = 0.0
    for length, size in stretches(by_samples, samples_to_target):
        constant += length / (1 + own_batch_size / size)
        slope += length / (size + own_batch_size)
    sizes = [size for _, size in by_samples]
    return CriticalBatch(constant / slope if slope else inf, min(sizes), max(sizes), by_samples)


def stretches(by_samples: Sequence[tuple[int, float]], samples_to_target: int) -> list[tuple[int, float]]:
    """Return the lengths in samples between the points where a critical batch size was measured, up to the target, and
    that size. The first one begins with the training, wherever it was measured."""
    starts = [start for start, _ in by_samples]
    ends = [*starts[1:], max(samples_to_target, starts[-1] + 1)]
    begins = [0, *starts[1:]]
    return [(end - begin, size) for begin, end, (_, size) in zip(begins, ends, by_samples, strict=True)]


def fitted_critical_batch(efficiency: Mapping[int, float], own_batch_size: int) -> float:
    """Return the critical batch size that fits efficiencies best; `inf` for none.

    The squares of their errors are added up as they are, not on a logarithmic scale, where the least efficient batch
    would count most: it has the fewest steps, and the trade-off holds least there. Over the ten grids by which that was
    chosen, the logarithm of the critical batch size from branches is off by 0.39 (root mean square) in place of 0.55.

    Args:
        efficiency: by batch size. More than 1 counts as 1: no batch takes fewer samples than a smaller one.
    """
    candidates = candidate_sizes(own_batch_size)
    errors = np.zeros_like(candidates)
    for size, each in efficiency.items():
        expected = np.exp(-log_samples(candidates, size / own_batch_size, own_batch_size))
        errors += (expected - min(each, 1.0)) ** 2
    return best_size(candidates, errors)


def candidate_sizes(own_batch_size: int) -> NDArray[np.float64]:
    """Return the critical batch sizes that a fit considers, evenly spaced on a logarithmic scale."""
    return own_batch_size * np.geomspace(1 / 64, LARGEST / own_batch_size, 4000)


def log_samples(critical: NDArray[np.float64], ratio: float, own_batch_size: int) -> NDArray[np.float64]:
    """Return the logarithm of the expected samples, relative to those of the config's own batch."""
    inverse = own_batch_size / critical
    return np.log((1 + ratio * inverse) / (1 + inverse))


def best_size(candidates: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """Return the candidate with the smallest error; `inf` for none."""
    # the last one of equals: without a loss, all sizes from some limit on are as likely
    size = float(candidates[len(errors) - 1 - errors[::-1].argmin()])
    return inf if size >= LARGEST / 2 else size
