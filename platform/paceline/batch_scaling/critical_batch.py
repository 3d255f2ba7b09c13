"""The critical batch size, measured directly: branched training (Merrill et al. 2025, arXiv:2505.23971).

From a checkpoint of the config as it is, branches train on the next samples with 1, 2, 4, ... times the batch, and are
evaluated with an average of their weights. A branch that ends with the loss that the one with the config's own batch
has after fewer samples has used its samples less well:

    efficiency = samples that the config's own batch takes from the one loss to the other / samples of the branch

over its second half: the first steps after a change are unlike those of a training that had that batch all along.

By the trade-off of McCandlish et al. 2018 (arXiv:1812.06162), the samples to a loss grow with the batch as
1 + B / B_crit if the learning rate goes with it; so with B_0 the config's own batch

    efficiency(B) = (1 + B_0 / B_crit) / (1 + B / B_crit)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

import numpy as np

LOSS = "val/loss"
"""The metric by which branches are compared."""
Rule = Literal["none", "sqrt", "linear"]
"""How the learning rate follows the batch."""
LARGEST = 2.0**40
"""A critical batch size in samples that means: there is none."""


@dataclass(frozen=True)
class Branch:
    """A stretch of training with a larger batch."""

    start_samples: int
    """Samples before it, with the config's own batch."""
    batch_size: int
    rule: Rule
    samples: int
    """Samples that it took."""
    loss: float
    """Of the validation set at its end; `inf` or NaN where it diverged."""
    efficiency: float
    """0 where it diverged, or got nowhere."""


@dataclass(frozen=True)
class CriticalBatch:
    """A critical batch size in samples."""

    size: float
    """`inf` where no batch that was tried is less efficient than the config's own."""
    low: float
    high: float
    """The smallest and the largest one among the points of training at which it was measured."""
    by_samples: tuple[tuple[int, float], ...]
    """Samples before each of these points, and the size there."""


class LossCurve:
    """The loss with the config's own batch over the samples, made monotone (isotonic regression)."""

    def __init__(self, samples: Sequence[int], losses: Sequence[float]) -> None:
        """Args:
        samples: of each evaluation, increasing; at least two.
        """
        from scipy.optimize import isotonic_regression

        self._samples = np.asarray(samples, dtype=np.float64)
        self._losses = isotonic_regression(np.asarray(losses, dtype=np.float64), increasing=False).x

    def loss_at(self, samples: float) -> float:
        """Return the loss after so many samples."""
        return float(np.interp(samples, self._samples, self._losses))

    def samples_to(self, loss: float) -> float:
        """Return the samples after which the loss was this low; the last ones where it never was."""
        if not isfinite(loss):
            return float(self._samples[0])
        return float(np.interp(-loss, -self._losses, self._samples))


def efficiency_of(curve: LossCurve, half: tuple[int, float], whole: tuple[int, float]) -> float:
    """Return the efficiency of the second half of a branch, from 0; slightly above 1 where it did better.

    Args:
        half: samples and loss in the middle of the branch.
        whole: the same at its end.
    """
    if not isfinite(whole[1]):
        return 0.0
    return max(0.0, (curve.samples_to(whole[1]) - curve.samples_to(half[1])) / (whole[0] - half[0]))


def branch_of(start_samples: int, curve: LossCurve, batch_size: int, rule: Rule, values: Mapping[str, Any]) -> Branch:
    """Return a branch, compared with the curve.

    Args:
        values: as `segment.train_segment` answers; the evaluations have a `val/loss`.
    """
    evaluations = [(samples, float(metrics[LOSS])) for samples, metrics in values["evaluations"]]
    efficiency, loss, middle = 0.0, inf, start_samples + values["samples"] / 2
    if len(evaluations) >= 2 and not values["diverged"]:
        loss = evaluations[-1][1]
        half = min(evaluations[:-1], key=lambda each: abs(each[0] - middle))
        efficiency = efficiency_of(curve, half, evaluations[-1])
    return Branch(start_samples, batch_size, rule, values["samples"], loss, efficiency)


def expected_efficiency(batch_size: float, own_batch_size: float, critical: float) -> float:
    """Return the efficiency that the trade-off expects; 1 for the config's own batch."""
    return (1 + own_batch_size / critical) / (1 + batch_size / critical)


def best_rules(branches: Sequence[Branch]) -> list[Branch]:
    """Return the most efficient branch for each point of training and batch size."""
    best: dict[tuple[int, int], Branch] = {}
    for branch in branches:
        key = branch.start_samples, branch.batch_size
        if key not in best or branch.efficiency > best[key].efficiency:
            best[key] = branch
    return list(best.values())


def critical_batch(branches: Sequence[Branch], own_batch_size: int) -> CriticalBatch:
    """Fit the trade-off to the best branch of each batch size, at each point of training and over all of them.

    Args:
        branches: at least one.
    """
    best = best_rules(branches)
    starts = sorted({branch.start_samples for branch in best})
    by_samples = tuple(
        (start, _fitted([each for each in best if each.start_samples == start], own_batch_size)) for start in starts
    )
    sizes = [size for _, size in by_samples]
    return CriticalBatch(_fitted(best, own_batch_size), min(sizes), max(sizes), by_samples)


def _fitted(branches: Sequence[Branch], own_batch_size: int) -> float:
    """The size with the least squared error of the logarithm of the efficiency; `inf` for none."""
    ratios = np.asarray([each.batch_size / own_batch_size for each in branches])
    found = np.clip([each.efficiency for each in branches], 1.0 / ratios / 4, 1.0)
    sizes = own_batch_size * np.geomspace(1 / 64, LARGEST / own_batch_size, 4000)
    inverse = own_batch_size / sizes[:, None]
    errors = (np.log((1 + inverse) / (1 + ratios * inverse)) - np.log(found)) ** 2
    size = float(sizes[errors.sum(axis=1).argmin()])
    return inf if size >= LARGEST / 2 else size


def rule_that_held(branches: Sequence[Branch], tolerance: float) -> tuple[Rule, int]:
    """Return the rule that is nearly the best one up to the largest batch size, and that size.

    Args:
        tolerance: how much of the best rule's efficiency it may lack, as a share.
    """
    reach: dict[Rule, int] = {}
    sizes = sorted({branch.batch_size for branch in branches})
    best = {(each.start_samples, each.batch_size): each.efficiency for each in best_rules(branches)}
    for rule in sorted({branch.rule for branch in branches}):
        reach[rule] = 0
        for size in sizes:
            own = [each for each in branches if each.rule == rule and each.batch_size == size]
            shares = [
                each.efficiency / best[each.start_samples, size] for each in own if best[each.start_samples, size]
            ]
            if not shares:
                continue  # not tried, since another rule did well there
            if float(np.mean(shares)) < 1 - tolerance:
                break
            reach[rule] = size
    rule = max(reach, key=lambda each: (reach[each], _total(branches, each)))
    return rule, reach[rule]


def _total(branches: Sequence[Branch], rule: Rule) -> float:
    return sum(branch.efficiency for branch in branches if branch.rule == rule)
