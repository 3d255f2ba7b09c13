"""Spread between seeds of the predicted samples to the target.

Each seed is trained with the config as it is and in branches of its own, and gives a prediction of its own. Over the
seeds their logarithms are taken as normal, and the interval of the mean is Student's.
"""

from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import stdev

from paceline.batch_scaling.critical_batch import Branch, critical_batch, expected_efficiency

ERROR = 0.05
"""Error level of the intervals."""


def spread_of(
    branches: Sequence[Branch], own_samples: Mapping[int, int], own_batch_size: int, sizes: Sequence[int]
) -> dict[int, float]:
    """Return half the width of the 95 % interval of the logarithm of the samples to the target, by batch size.

    Args:
        own_samples: to the target with the config as it is, by seed.

    Returns:
        Empty with fewer than two seeds that have branches: one tells nothing about the next.
    """
    from scipy.special import stdtrit

    predicted: list[dict[int, float]] = []
    for seed, samples in own_samples.items():
        own = [branch for branch in branches if branch.seed == seed]
        if own:
            critical = critical_batch(own, own_batch_size, samples).size
            predicted.append(
                {size: log(samples / expected_efficiency(size, own_batch_size, critical)) for size in sizes}
            )
    if len(predicted) < 2:
        return {}
    quantile = float(stdtrit(len(predicted) - 1, 1 - ERROR / 2))
    return {size: quantile * stdev(each[size] for each in predicted) / sqrt(len(predicted)) for size in sizes}
