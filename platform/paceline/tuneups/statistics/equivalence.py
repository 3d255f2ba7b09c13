"""Test of equivalence over seeds: a technique trains as well as the baseline, with a margin set beforehand.

A test that finds no significant difference proves nothing: with few seeds it never finds one. Here the burden of proof
is on the technique: it is equivalent if the data exclude that it differs by the margin or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, nan, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from paceline.direction import Direction
from paceline.tuneups.statistics.intervals import Interval, student_interval

Parity = Literal["equivalent", "worse", "better", "undecided"]

ERROR = 0.05
"""Error level of each of the two one-sided tests."""
LEAST_SPREAD = 0.05
"""Least standard deviation of the differences, as a share of the margin: that of few seeds may be zero by chance, above
all for a metric with few distinct values."""
MOST_SEEDS = 1024


@dataclass(frozen=True)
class QualityComparison:
    """Quality of a technique's models compared with the baseline's."""

    difference: Interval
    """Mean of the technique minus that of the baseline, in the metric's unit, with its interval. Each end is the bound
    of a one-sided test at `error`."""
    verdict: Parity
    """`equivalent`: shown to differ by less than the margin. `worse`, `better`: shown to differ in this direction, and
    not shown to stay within the margin. `undecided`: none of these, more seeds are needed."""
    is_not_inferior: bool
    """True if shown to be worse by less than the margin, or not at all; it may also be better by any amount."""
    margin: float
    seeds: int
    seeds_needed: int | None = None
    """Number of seeds, more than these, that are likely to show equivalence if difference and spread stay as they are;
    None for fewer than two seeds, and for a difference of the margin or more."""


def compare_quality(
    baseline: Sequence[float],
    technique: Sequence[float],
    margin: float,
    mode: Direction,
    error: float = ERROR,
    claim_error: float = ERROR,
) -> QualityComparison:
    """Compare the final metric over seeds by two one-sided t tests (Schuirmann 1987, Journal of Pharmacokinetics and
    Biopharmaceutics 15: 657) of the differences seed by seed.

    A t interval assumes that the differences are about normal. At 5 % it is on each side 6.3 standard errors wide with
    2 seeds, 2.9 with 3 and 2.1 with 5, so that 2 seeds decide little. One seed decides nothing. A technique with a
    value that is not finite has diverged, and is worse.

    Args:
        baseline: metric of the baseline after training, one for each seed.
        technique: metric of the technique, for the same seeds in the same order.
        margin: difference that matters, in the metric's unit; chosen before the data are seen.
        mode: direction of improvement: `max` if a high metric is better, `min` if a low one is.
        error: probability that a technique that is worse by the margin is called equivalent, or not inferior.
        claim_error: probability that a technique that does not differ is called worse; likewise better.

    Raises:
        ValueError: the margin is not positive, the numbers of values differ or are 0, or the baseline is not finite.
    """
    if not 0 < margin < inf:
        raise ValueError("the margin must be a positive number")
    if not baseline or len(baseline) != len(technique):
        raise ValueError(
            f"cannot compare {len(baseline)} values of the baseline with {len(technique)} of the technique"
        )
    if not all(map(isfinite, baseline)):
        raise ValueError("the baseline has a value that is not finite")
    if not all(map(isfinite, technique)):
        return QualityComparison(Interval(nan, -inf, inf), "worse", False, margin, len(technique))
    differences = np.asarray(technique, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    difference = student_interval(differences, 2 * error, LEAST_SPREAD * margin)
    better = difference if mode == "max" else Interval(-difference.estimate, -difference.high, -difference.low)
    claimed = student_interval(differences if mode == "max" else -differences, 2 * claim_error, LEAST_SPREAD * margin)
    needed = None
    if len(differences) > 1:
        spread = max(LEAST_SPREAD * margin, float(np.std(differences, ddof=1)))
        room = margin - abs(difference.estimate)
        needed = max(len(differences) + 1, seeds_needed(spread, room, error=error)) if room > 0 else None
    verdict = _verdict(better, claimed, margin)
    return QualityComparison(difference, verdict, better.low > -margin, margin, len(technique), needed)


def seeds_needed(spread: float, margin: float, power: float = 0.8, error: float = ERROR) -> int:
    """Return the seeds needed to show, with probability `power`, that a technique without a difference is equivalent.

    Uses the common approximation that treats the estimated spread as the true one in the t statistic's shift.

    Args:
        spread: standard deviation of the difference between technique and baseline of the same seed.
        margin: as in `compare_quality`.
        error: as in `compare_quality`.

    Returns:
        At least 2, and at most `MOST_SEEDS`.

    Raises:
        ValueError: the spread is negative, the margin is not positive, or the power is not between 0 and 1.
    """
    if not 0 <= spread < inf or not 0 < margin < inf or not 0 < power < 1:
        raise ValueError("needs a spread of at least 0, a positive margin, and a power between 0 and 1")
    normal = NormalDist()
    sum_of_quantiles = normal.inv_cdf(1 - error) + normal.inv_cdf((1 + power) / 2)
    count = max(2, ceil((sum_of_quantiles * spread / margin) ** 2))  # t has heavier tails: never fewer
    while spread and count < MOST_SEEDS and _power(count, spread, margin, error) < power:
        count += 1
    return min(count, MOST_SEEDS)


def _power(count: int, spread: float, margin: float, error: float) -> float:
    degrees = count - 1
    shift = margin * sqrt(count) / spread - float(stdtrit(degrees, 1 - error))
    return max(0.0, 2 * float(stdtr(degrees, shift)) - 1)


def _verdict(better: Interval, claimed: Interval, margin: float) -> Parity:
    """Return the verdict, from intervals of the technique's improvement."""
    if -margin < better.low and better.high < margin:
        return "equivalent"
    if claimed.high < 0:
        return "worse"
    return "better" if claimed.low > 0 else "undecided"
