"""Whether a technique trains as well as the baseline: a test of equivalence over seeds, with a margin set beforehand.

That a test finds no significant difference says nothing: with few seeds it never does. Here the burden is on the
technique: it is equivalent when the data exclude, at 5 %, that it differs by the margin or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, nan, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from paceline.direction import Direction
from paceline.tuneups.statistics.intervals import Array, Interval, student_interval

Parity = Literal["equivalent", "worse", "better", "undecided"]

ERROR = 0.05
"""Of each of the two one-sided tests."""


@dataclass(frozen=True)
class Quality:
    """How good a technique's models are beside the baseline's."""

    difference: Interval
    """Mean of the technique minus that of the baseline, in the metric's unit, with its 90 % interval: each end of it is
    the bound of a one-sided test at 5 %."""
    verdict: Parity
    """`equivalent`: shown to differ by less than the margin. `worse`, `better`: shown to differ in this direction, and
    not shown to stay within the margin. `undecided`: none of these, more seeds are needed."""
    is_not_inferior: bool
    """Shown to be worse by less than the margin, or not at all; a gain is no obstacle to this one."""
    margin: float
    seeds: int
    """Of the technique."""


def compare_quality(
    baseline: Sequence[float], technique: Sequence[float], margin: float, mode: Direction, paired: bool = True
) -> Quality:
    """Compare the final metric over seeds by two one-sided t tests (Schuirmann 1987, Journal of Pharmacokinetics and
    Biopharmaceutics 15: 657).

    Each error is at most 5 %: that a technique which differs by the margin is called equivalent, and that one which
    does not differ is called worse, or better. A t interval takes the differences for about normal; on each side it is
    6.3 standard errors wide with 2 seeds, 2.9 with 3 and 2.1 with 5, so that 2 decide little.

    Where all differences are the same to the last bit, their spread is zero, and so is the width of the interval: the
    verdict is that of the difference itself. Of techniques that compute the very same this is right. With a metric that
    takes few values, such as an accuracy over 100 samples, it can be chance: use more seeds or more samples there.

    One seed decides nothing. A technique with a value that is not finite has diverged, and is worse.

    Args:
        baseline: the metric after training, one for each seed.
        technique: the same of the technique; with `paired` of the same seeds in the same order.
        margin: the difference that matters, in the metric's unit; chosen before the data are seen.
        mode: whether the metric is good when it is high (`max`) or low (`min`).
        paired: compare seed by seed. Without it, by Welch's test, which allows for different spreads.

    Raises:
        ValueError: for a margin that is not positive, paired values of different number, no values, or a baseline that
            is not finite.
    """
    if not 0 < margin < inf:
        raise ValueError("the margin must be a positive number")
    if not baseline or not technique or (paired and len(baseline) != len(technique)):
        raise ValueError(
            f"cannot compare {len(baseline)} values of the baseline with {len(technique)} of the technique"
        )
    if not all(map(isfinite, baseline)):
        raise ValueError("the baseline has a value that is not finite")
    if not all(map(isfinite, technique)):
        return Quality(Interval(nan, -inf, inf), "worse", False, margin, len(technique))
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(technique, dtype=np.float64)
    difference = _paired(after - before) if paired else _welch(before, after)
    better = difference if mode == "max" else Interval(-difference.estimate, -difference.high, -difference.low)
    return Quality(difference, _verdict(better, margin), better.low > -margin, margin, len(technique))


def seeds_needed(spread: float, margin: float, power: float = 0.8) -> int:
    """How many seeds it takes to show that a technique is equivalent which does not differ, with probability `power`.

    By the usual approximation, which takes the estimated spread for the true one in the t statistic's shift.

    Args:
        spread: standard deviation of the difference between technique and baseline of the same seed. Where only the
            deviation of each is known and the seeds have nothing in common, this is 1.41 times that.
        margin: as in `compare_quality`.

    Returns:
        2 at least.

    Raises:
        ValueError: for a negative spread, a margin that is not positive, or a power that is not between 0 and 1.
    """
    if not 0 <= spread < inf or not 0 < margin < inf or not 0 < power < 1:
        raise ValueError("needs a spread of at least 0, a positive margin, and a power between 0 and 1")
    normal = NormalDist()
    sum_of_quantiles = normal.inv_cdf(1 - ERROR) + normal.inv_cdf((1 + power) / 2)
    count = max(2, ceil((sum_of_quantiles * spread / margin) ** 2))  # t has heavier tails: never fewer
    while spread and _power(count, spread, margin) < power:
        count += 1
    return count


def _power(count: int, spread: float, margin: float) -> float:
    degrees = count - 1
    return max(0.0, 2 * float(stdtr(degrees, margin * sqrt(count) / spread - stdtrit(degrees, 1 - ERROR))) - 1)


def _verdict(better: Interval, margin: float) -> Parity:
    """From an interval of how much better the technique is."""
    if -margin < better.low and better.high < margin:
        return "equivalent"
    if better.high < 0:
        return "worse"
    return "better" if better.low > 0 else "undecided"


def _paired(differences: Array) -> Interval:
    if len(differences) < 2:
        return Interval(float(differences[0]), -inf, inf)
    return student_interval(differences, 2 * ERROR)


def _welch(before: Array, after: Array) -> Interval:
    mean = float(np.mean(after) - np.mean(before))
    if min(len(before), len(after)) < 2:
        return Interval(mean, -inf, inf)
    variances = [float(np.var(each, ddof=1)) / len(each) for each in (before, after)]
    total = sum(variances)
    if total == 0:
        return Interval(mean, mean, mean)
    counts = (len(before), len(after))
    degrees = total**2 / sum(part**2 / (count - 1) for part, count in zip(variances, counts, strict=True))
    half = float(stdtrit(degrees, 1 - ERROR)) * sqrt(total)
    return Interval(mean, mean - half, mean + half)
