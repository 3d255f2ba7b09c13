"""Trainings to the target: how each ended, and how sure a speedup over several seeds is."""

from collections.abc import Iterable, Sequence
from math import exp, sqrt
from statistics import fmean, median, stdev
from typing import NamedTuple

from paceline.batch_scaling.findings import Verification


class TargetReached(NamedTuple):
    """A training to the target."""

    samples: int | None
    """None where it was not reached; `seconds` likewise."""
    seconds: float | None
    problem: str = ""


def lower_limit(log_ratios: Sequence[float], level: float) -> float:
    """Return the one-sided lower confidence limit of a ratio, from its logarithms with several seeds (Student's t).

    Args:
        log_ratios: at least two.
        level: chance that the ratio is below the limit.
    """
    from scipy.stats import t

    error = stdev(log_ratios) / sqrt(len(log_ratios))
    return exp(fmean(log_ratios) - float(t.ppf(1 - level, len(log_ratios) - 1)) * error)


def interval_of(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a ratio."""
    return lower_limit(log_ratios, 0.025), 1 / lower_limit([-each for each in log_ratios], 0.025)


def verification_of(size: int, trained: Iterable[TargetReached]) -> Verification:
    """Return the trainings of a batch size, in order of the seeds."""
    those = list(trained)
    return Verification(size, tuple(each.samples for each in those), tuple(each.seconds for each in those))


def median_of(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
