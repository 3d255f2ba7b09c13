"""Speedup of a candidate over the config as it is, and how sure it is.

Both are trained to the target with the same seeds. The samples scatter between seeds, partly in common: with the same
seed, both begin with the same weights and see the samples in the same order. So they are compared seed by seed
(Student's test for paired samples, whose variance is moderated by the usual one).

Few seeds show only a large difference. While they do not decide, and more of them might, further seeds are trained, up
to `looks` fixed beforehand. The chance of a false recommendation is divided among the looks (Bonferroni's correction).
"""

from collections.abc import Sequence
from math import exp, hypot, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from paceline.batch_scaling.findings import Verification

LEVELS = (0.04, 0.01)
"""Chance of each candidate to be recommended though it is not faster: 5 % together."""
EQUAL_LEVELS = (0.025, 0.025)
"""The same where a training with the first seed decides which of two candidates is compared: Bonferroni's correction
over both."""
LOOK_SHARES = (0.4, 0.3, 0.3)
"""Share of a candidate's chance that is spent at each of the `looks`."""

AT_TARGET_LEVEL = 0.05
"""Chance at each look that the time to the target itself, without what comes before it, seems to be shorter. If a
candidate is as fast as the config as it is there, and 1.2 to 1.3 times as fast on the way, it is recommended in 9 to
10 % of simulated studies; without this condition in half of them."""

USUAL_SCATTER = 0.12
"""Usual standard deviation, over the seeds, of the logarithm of the ratio of the smoothed samples with two batch sizes:
over 16 seeds it was 0.09 to 0.12 in five comparisons of two models. That of the samples to the target itself was 0.11
to 0.19."""
USUAL_FREEDOM = 2
"""Degrees of freedom that it counts for: with four, false recommendations would exceed 5 % for a model whose samples
scatter by twice as much."""


MOST_STEP_ERROR = 0.02
"""Largest standard error of the logarithm of the ratio of the times of a step, from which on it is measured again. Over
three seeds, that of the samples is 0.07 at the usual scatter, and a training takes longer than a measurement."""


def looks(num_seeds: int) -> tuple[int, int, int]:
    """Return the numbers of seeds after which a candidate is compared.

    Args:
        num_seeds: the least number of seeds, at least 2.
    """
    return num_seeds, num_seeds + max(1, num_seeds // 3), 2 * num_seeds


class Speedup(NamedTuple):
    """Time of the config as it is over that of a candidate, as the logarithm."""

    log_ratio: float
    scatter: float
    """Standard deviation over the seeds."""
    num_seeds: int
    step_error: float
    """Standard error of the time of a step, which further seeds do not change."""

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return USUAL_FREEDOM + self.num_seeds - 1

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm."""
        return hypot(self.scatter / sqrt(self.num_seeds), self.step_error)

    @property
    def estimate(self) -> float:
        """The ratio."""
        return exp(self.log_ratio)

    def lower_limit(self, level: float) -> float:
        """Return the one-sided lower confidence limit of the ratio (moderated Student's t).

        Args:
            level: chance that the ratio is below the limit.
        """
        from scipy.stats import t

        return exp(self.log_ratio - float(t.ppf(1 - level, self.freedom)) * self.standard_error)

    def with_seeds(self, num_seeds: int) -> "Speedup":
        """Return what this number of seeds would show if estimate and scatter stayed as they are."""
        return self._replace(num_seeds=num_seeds)

    def interval(self, level: float) -> tuple[float, float]:
        """Return both confidence limits of the ratio; `level` is the chance that it is below the lower one."""
        low = self.lower_limit(level)
        return low, self.estimate**2 / low


def speedup_of(own: Verification, other: Verification, resolution: float) -> Speedup:
    """Compare trainings to the target, seed by seed, by their smoothed samples.

    Args:
        resolution: samples between two evaluations: that is how well the samples to the target are known.
    """
    return _speedup(_log_ratios(own.smoothed_samples, other.smoothed_samples), own, other, resolution)


def speedup_at_target(own: Verification, other: Verification, resolution: float) -> Speedup:
    """Compare them by the samples to the first evaluation at the target, whatever happened on the way to it."""
    return _speedup(_log_ratios(own.samples, other.samples), own, other, resolution)


def _speedup(logs: Sequence[float], own: Verification, other: Verification, resolution: float) -> Speedup:
    # the true value of each is anywhere between the evaluations: a uniform distribution
    rounding = resolution / own.mean_samples * sqrt(2 / 12)
    turns = fmean(_log_ratios(own.sample_seconds, other.sample_seconds))
    return Speedup(fmean(logs) + turns, max(moderated_scatter(logs), rounding), len(logs), step_error(own, other))


def step_error(own: Verification, other: Verification) -> float:
    """Return the standard error of the logarithm of the ratio of their times of a step; 0 for a single turn."""
    turns = _log_ratios(own.sample_seconds, other.sample_seconds)
    return stdev(turns) / sqrt(len(turns)) if len(turns) > 1 else 0.0


def _log_ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [log(one / other) for one, other in zip(mine, theirs, strict=True)]


def moderated_scatter(logs: Sequence[float]) -> float:
    """Return the standard deviation between seeds, moderated by the usual one (Smyth 2004, doi:10.2202/1544-6115.1027,
    section 3).

    Few seeds hardly tell how much they scatter. Student's t with this standard deviation has `USUAL_FREEDOM` more
    degrees of freedom.

    Args:
        logs: logarithms of the ratio of the samples, one for each seed.
    """
    freedom = len(logs) - 1
    own = stdev(logs) if freedom else 0.0
    return sqrt((USUAL_FREEDOM * USUAL_SCATTER**2 + freedom * own**2) / (USUAL_FREEDOM + freedom))
