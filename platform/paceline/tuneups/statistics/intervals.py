"""Intervals of a speedup that bursts of load do not mislead, and Student's of a mean."""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Array = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate, and what it may lie between."""

    estimate: float
    low: float
    high: float

    def text(self, decimals: int = 2) -> str:
        """Such as `1.21 (1.18-1.25)`; an end of 100 times the estimate and more is written as `inf`."""
        high = self.high if self.high < 100 * self.estimate else inf
        return f"{self.estimate:.{decimals}f} ({self.low:.{decimals}f}-{high:.{decimals}f})"


def speedup(
    baseline_seconds: Sequence[float], technique_seconds: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Return the ratio of the technique's speed to the baseline's: 1.2 is 20 % faster.

    The estimate is that of Hodges and Lehmann (1963, "Estimates of location based on rank tests", Annals of
    Mathematical Statistics 34): the median of the means of all two log ratios. A pair that a burst has hit moves it
    hardly more than it moves a median, and without bursts it scatters less: 2 % more than a mean does, a median 25 %.

    The interval holds those factors that the signed-rank test does not reject (Hollander, Wolfe, Chicken 2014,
    "Nonparametric Statistical Methods", 3.4). It needs no assumption about the noise but that the order within each
    pair was drawn at random: then, whatever the machine did, each pair's noise has either sign with probability 1/2,
    independently of the others (Fisher's randomization; Rosenbaum 2002, "Observational Studies", 2.4). So neither
    bursts nor a drift nor the likeness of neighbouring pairs shorten its coverage, as they do that of a bootstrap that
    draws pairs as if they were independent, and with 5 to 40 pairs there are no blocks to draw instead.

    With so few pairs that no such interval exists (fewer than 6 at 95 %), it is Student's t interval of the log ratios,
    which takes them for normal.

    Args:
        baseline_seconds: seconds per sample of the baseline, one for each pair.
        technique_seconds: those of the technique.

    Returns:
        An interval of 0 to infinity for fewer than 2 pairs; without any, the estimate is 1.

    Raises:
        ValueError: when there is not one of each for every pair, or one is not positive.
    """
    logs = log_ratios(baseline_seconds, technique_seconds)
    if len(logs) < 2:
        return Interval(exp(logs[0]) if len(logs) else 1.0, 0.0, inf)
    found = signed_rank_interval(logs, 1 - confidence)
    if found.high == inf:
        found = student_interval(logs, 1 - confidence)
    return as_ratios(found)


def log_ratios(baseline_seconds: Sequence[float], technique_seconds: Sequence[float]) -> Array:
    """Logarithm of each pair's speedup.

    Raises:
        ValueError: when there is not one of each for every pair, or one is not positive.
    """
    baseline, technique = (
        np.asarray(baseline_seconds, dtype=np.float64),
        np.asarray(technique_seconds, dtype=np.float64),
    )
    if baseline.shape != technique.shape or baseline.ndim != 1:
        raise ValueError(
            f"{baseline.size} times of the baseline and {technique.size} of the technique cannot be paired"
        )
    both = np.concatenate([baseline, technique])
    if not np.all(np.isfinite(both) & (both > 0)):
        raise ValueError("times must be positive numbers of seconds")
    return np.asarray(np.log(baseline) - np.log(technique))


def as_ratios(logs: Interval) -> Interval:
    """An interval of logarithms as one of factors."""
    return Interval(exp(logs.estimate), exp(logs.low), exp(logs.high) if logs.high < 700 else inf)


def hodges_lehmann(values: Array) -> float:
    """Estimate of the centre: the median of the means of all two values, each with itself included."""
    return float(np.median(_walsh(values)))


def signed_rank_interval(values: Array, alpha: float) -> Interval:
    """Hodges-Lehmann estimate, and the centres that the exact two-sided signed-rank test does not reject.

    From minus to plus infinity when even the most extreme signs of so few values are likelier than `alpha`.
    """
    walsh = _walsh(values)
    estimate = float(np.median(walsh))
    cut = _rejected_counts(len(values), alpha)
    if cut == 0:
        return Interval(estimate, -inf, inf)
    return Interval(estimate, float(walsh[cut - 1]), float(walsh[-cut]))


def _walsh(values: Array) -> Array:
    rows, columns = np.triu_indices(len(values))
    return np.sort((values[rows] + values[columns]) / 2)


def student_interval(values: Array, alpha: float, least_deviation: float = 0.0) -> Interval:
    """Mean, and Student's two-sided t interval of it; from minus to plus infinity for a single value.

    Args:
        least_deviation: what the standard deviation is taken for where that of the values is below.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, -inf, inf)
    deviation = max(least_deviation, float(np.std(values, ddof=1)))
    half = float(stdtrit(len(values) - 1, 1 - alpha / 2)) * deviation / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


@lru_cache(maxsize=4096)
def _rejected_counts(count: int, alpha: float) -> int:
    """Return how many of the smallest values of the signed-rank statistic have together at most `alpha` / 2."""
    below = np.cumsum(_signed_rank_probabilities(count))
    return int(np.searchsorted(below, alpha / 2 * (1 + 1e-9), side="right"))


@lru_cache(maxsize=256)
def _signed_rank_probabilities(count: int) -> Array:
    """Return the probability of each sum of positive ranks from 1 to `count`, when all signs are equally likely."""
    probabilities = np.zeros(count * (count + 1) // 2 + 1)
    probabilities[0] = 1.0
    for rank in range(1, count + 1):
        shifted = np.concatenate([np.zeros(rank), probabilities[:-rank]])
        probabilities = (probabilities + shifted) / 2
    return probabilities
