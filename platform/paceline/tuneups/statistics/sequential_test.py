"""Test over builds that finds the configs that differ in speed from the config that each is compared with.

Within one build a difference can be measured with any precision, and still be an accident of that build, such as where
its memory lies. So the build is the sampling unit. Each build gives one log ratio of speeds for each hypothesis, and
Student's t test is applied to these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf, log, sqrt
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from paceline.tuneups.statistics.intervals import Interval, as_ratios

SpeedVerdict = Literal["gain", "no gain", "regression"]

LOOKS = (3, 4, 6, 9, 12)
"""Numbers of builds after which a test looks at its data. The last one is the largest number of builds."""
LEAST_EFFECT = 0.02
"""Smallest difference in speed that counts. A smaller one is called `no gain`, however significant it is."""
LEAST_DEVIATION = 0.002
"""Least standard deviation between builds that is used: that of three builds may be near zero by chance."""
PRIOR_FREEDOM, PRIOR_SHARE = 4.0, 0.25
"""The pooled variance of the others counts for at most this many degrees of freedom, and this share of its own."""
HOPE = 1.0
"""Standard errors that are added to an estimated effect before it is judged hopeless."""
FEWEST_TO_PROJECT = 4
"""Fewest builds whose variance is used to project whether the last look will decide."""
NARROWING_SHARE = 1 / 6
"""Share of `alpha` for the looks that only narrow the interval of what the other looks have rejected."""
PRECISION = 0.1
"""Largest half-width of a log ratio's interval that is precise enough to be reported: about 10 %."""


@dataclass(frozen=True)
class Comparison:
    """Speed of a config over that of another one, measured over builds."""

    verdict: SpeedVerdict
    interval: Interval
    """Interval of the speed ratio, valid at all looks. It excludes 1 exactly if the test rejected equal speeds."""
    builds: int
    looks: int = 0
    """Number of looks at which it was tested."""
    builds_needed: int | None = None
    """Number of builds that would decide it, if estimate and deviation stay the same. None if it is decided, if
    the estimate is too small to count, or if more would be needed than the last of `LOOKS`."""
    is_given_up: bool = False
    """True if it was measured no further, since a difference that counts is unlikely."""


UNKNOWN = Interval(0.0, -inf, inf)


@dataclass
class _Hypothesis:
    """Null hypothesis: two configs are equally fast."""

    log_ratios: list[float] = field(default_factory=list)
    interval: Interval = UNKNOWN
    """Interval of the log ratio at the look that rejected the hypothesis, or at the latest look."""
    builds: int = 0
    """Number of builds at that look."""
    looks: int = 0
    is_rejected: bool = False

    @property
    def mean(self) -> float:
        return fmean(self.log_ratios)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of its own variance; 0 with fewer than 2 builds."""
        return max(0, len(self.log_ratios) - 1)

    @property
    def variance(self) -> float:
        """Variance of a log ratio."""
        mean = self.mean
        squares = fsum((each - mean) ** 2 for each in self.log_ratios)  # NumPy is slower for this few values
        return max(LEAST_DEVIATION**2, squares / self.freedom)


class _Estimate(NamedTuple):
    """Mean log ratio, its standard error and degrees of freedom."""

    mean: float
    standard_error: float
    freedom: float

    @property
    def p_value(self) -> float:
        """P value of Student's two-sided test."""
        return 2 * float(stdtr(self.freedom, -abs(self.mean) / self.standard_error))

    def interval(self, level: float) -> Interval:
        """Return Student's interval with an error of `level`."""
        half = float(stdtrit(self.freedom, 1 - level / 2)) * self.standard_error
        return Interval(self.mean, self.mean - half, self.mean + half)


class SequentialTest:
    """Tests several hypotheses at looks that are fixed beforehand. The probability of any false rejection is at most
    `alpha`.

    The variance of a few builds says little: of three, Student's t needs 27 standard errors where nine would need 4. So
    each is moderated by the mean variance of the others, A/A included, as if that came from a few further builds
    (Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression in microarray
    experiments", Statistical Applications in Genetics and Molecular Biology 3, equation 7). There, the weight is
    estimated; here it is small and fixed, and a variance is only ever raised: a technique that is noisier than the
    others keeps its own. In simulations with a technique four times as noisy as the others, the chance of any false
    rejection stayed within `alpha`.

    At the look after n of N builds, `alpha` n / N may have been spent (Lan and DeMets 1983, "Discrete sequential
    boundaries for clinical trials", Biometrika 70; linear spending), less the share of looks that only narrow. The
    part that is new at this look is the level of Holm's procedure (1979, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 6) over the hypotheses that no earlier look has rejected. As
    long as no true hypothesis has been rejected, all true ones are among these, so that the chance of a false
    rejection at this look is at most its level; the levels add up to `alpha`. That holds however the hypotheses
    depend on each other, and whatever else ends the test early.

    A rejected hypothesis may be measured further, until its interval is narrow enough. The intervals of its looks hold
    together (Jennison and Turnbull 1989, "Interim analyses: the repeated confidence interval approach", Journal of the
    Royal Statistical Society B 51), so that their intersection is reported.
    """

    def __init__(
        self, names: Sequence[str], alpha: float, looks: Sequence[int] = LOOKS, narrowing: Sequence[int] = ()
    ) -> None:
        """Create a test without builds.

        Args:
            narrowing: looks after the last of `looks`, to which a hypothesis without a result does not come. They get
                only `NARROWING_SHARE` of `alpha`.

        Raises:
            ValueError: `alpha` is not between 0 and 1, or the looks are not increasing from at least 2.
        """
        planned = [*looks, *narrowing]
        if not 0 < alpha < 1 or not looks or looks[0] < 2 or planned != sorted(set(planned)):
            raise ValueError("needs alpha between 0 and 1, and increasing looks of at least 2 builds")
        self.looks = tuple(planned)
        self._last = looks[-1]
        """Builds after which every hypothesis has its result."""
        self._alpha, self._spent = alpha, 0.0
        self._hypotheses = {name: _Hypothesis() for name in names}
        self._dropped: set[str] = set()
        self._hopeless: set[str] = set()
        """Names of those that were dropped and that more time would not decide either."""
        self._equal = _Hypothesis()

    @property
    def names(self) -> list[str]:
        """Names of all hypotheses, in order."""
        return list(self._hypotheses)

    @property
    def open(self) -> list[str]:
        """Names of the hypotheses that more builds may decide, in order."""
        return [name for name, each in self._hypotheses.items() if not each.is_rejected and name not in self._dropped]

    @property
    def imprecise(self) -> list[str]:
        """Names of the rejected hypotheses whose interval is still wide."""
        return [
            name
            for name, each in self._hypotheses.items()
            if each.is_rejected and name not in self._dropped and each.interval.high - each.interval.low > 2 * PRECISION
        ]

    def drop(self, name: str) -> None:
        """Stop measuring a hypothesis. It still counts in the correction."""
        self._dropped.add(name)

    def add(self, log_ratios: Mapping[str, float], equal: float | None = None) -> None:
        """Add the log ratios of one build, without those of dropped hypotheses, and of decided ones whose interval is
        narrow. A hypothesis that is unlikely to be rejected by the last look is dropped, which cannot lead to a false
        rejection.

        Args:
            equal: log ratio of a config over itself.
        """
        if equal is not None:
            self._equal.log_ratios.append(equal)
        for name in [*self.open, *self.imprecise]:
            if name in log_ratios:
                self._hypotheses[name].log_ratios.append(log_ratios[name])
        for name in self.open:
            hypothesis = self._hypotheses[name]
            if self._is_hopeless(hypothesis, [look for look in self.looks if look <= self._last]):
                self.drop(name)
                self._hopeless |= {name} if self._is_hopeless(hypothesis, LOOKS) else set()

    def look(self, builds: int) -> None:
        """Test the open hypotheses after this number of builds.

        Raises:
            ValueError: no look was planned after this number of builds.
        """
        if builds not in self.looks:
            raise ValueError(f"no look was planned after {builds} builds, but after {self.looks}")
        level = self._spent_until(builds) - self._spent
        self._spent += level
        self._refine(level / max(1, len(self._hypotheses)))
        # one without new builds keeps its interval; it still counts in the correction
        waiting = [each for each in self._hypotheses.values() if not each.is_rejected]
        tested = [each for each in waiting if len(each.log_ratios) > each.builds]
        estimates = {id(each): estimate for each in tested if (estimate := self._estimate(each)) is not None}
        tested = sorted(
            (each for each in tested if id(each) in estimates), key=lambda each: estimates[id(each)].p_value
        )
        left = sum(not each.is_rejected for each in self._hypotheses.values())
        is_over = False
        for hypothesis in tested:
            estimate = estimates[id(hypothesis)]
            hypothesis.is_rejected = not is_over and estimate.p_value <= level / left
            is_over = not hypothesis.is_rejected
            hypothesis.interval = estimate.interval(level / left)
            hypothesis.builds = len(hypothesis.log_ratios)
            hypothesis.looks += 1
            left -= hypothesis.is_rejected

    def _spent_until(self, builds: int) -> float:
        """Return the part of `alpha` that is spent after the look after this number of builds."""
        further = NARROWING_SHARE if self.looks[-1] > self._last else 0.0
        if builds <= self._last:
            return self._alpha * (1 - further) * builds / self._last
        return self._alpha * (1 - further * (self.looks[-1] - builds) / (self.looks[-1] - self._last))

    def _refine(self, level: float) -> None:
        """Narrow the intervals of hypotheses that were rejected at an earlier look and have been measured since."""
        for hypothesis in self._hypotheses.values():
            estimate = self._estimate(hypothesis)
            if not hypothesis.is_rejected or len(hypothesis.log_ratios) == hypothesis.builds or estimate is None:
                continue
            now, before = estimate.interval(level), hypothesis.interval
            low, high = max(now.low, before.low), min(now.high, before.high)
            if low <= high:  # otherwise one of them is wrong, and it is unknown which
                hypothesis.interval = Interval(min(max(estimate.mean, low), high), low, high)
            hypothesis.builds, hypothesis.looks = len(hypothesis.log_ratios), hypothesis.looks + 1

    def _estimate(self, hypothesis: _Hypothesis) -> _Estimate | None:
        """Return the estimate with a moderated variance; None for fewer than 2 builds."""
        if not hypothesis.freedom:
            return None
        others = [each for each in (self._equal, *self._hypotheses.values()) if each.freedom and each is not hypothesis]
        freedom = sum(each.freedom for each in others)
        prior = min(PRIOR_FREEDOM, PRIOR_SHARE * freedom)
        common = sum(each.freedom * each.variance for each in others) / freedom if others else 0.0
        own = hypothesis.freedom
        builds = len(hypothesis.log_ratios)
        if hypothesis.variance >= common:
            return _Estimate(hypothesis.mean, sqrt(hypothesis.variance / builds), own)
        variance = (prior * common + own * hypothesis.variance) / (prior + own)
        return _Estimate(hypothesis.mean, sqrt(variance / builds), prior + own)

    def comparison(self, name: str) -> Comparison:
        """Return the result for a hypothesis so far."""
        hypothesis = self._hypotheses[name]
        if not hypothesis.log_ratios:
            return Comparison("no gain", Interval(1.0, 0.0, inf), 0)
        interval, builds = hypothesis.interval, hypothesis.builds
        if not hypothesis.looks:
            interval, builds = Interval(hypothesis.mean, -inf, inf), len(hypothesis.log_ratios)
        verdict: SpeedVerdict = "no gain"
        if hypothesis.is_rejected and abs(interval.estimate) >= log(1 + LEAST_EFFECT):
            verdict = "gain" if interval.estimate > 0 else "regression"
        is_hopeless = name in self._hopeless
        needed = None if hypothesis.is_rejected or is_hopeless else self._builds_needed(hypothesis)
        # one that is hopeless because its builds differ much may well have an effect that counts
        is_given_up = is_hopeless and self._hoped(hypothesis) < log(1 + LEAST_EFFECT)
        return Comparison(verdict, as_ratios(interval), builds, hypothesis.looks, needed, is_given_up)

    def _builds_needed(self, hypothesis: _Hypothesis) -> int | None:
        estimate = self._estimate(hypothesis)
        if estimate is None or abs(hypothesis.mean) < log(1 + LEAST_EFFECT):
            return None
        done = len(hypothesis.log_ratios)
        for before, builds in zip((0, *LOOKS), LOOKS, strict=False):
            level = self._alpha * (builds - before) / LOOKS[-1] / len(self._hypotheses)
            error = estimate.standard_error * sqrt(done / builds)
            if builds > done and _Estimate(estimate.mean, error, estimate.freedom + builds - done).p_value <= level:
                return builds
        return None

    def _is_hopeless(self, hypothesis: _Hypothesis, looks: Sequence[int]) -> bool:
        """Return True if even a somewhat larger effect would not be rejected at the last of some looks, or is too small
        to count."""
        estimate, last = self._estimate(hypothesis), looks[-1]
        if estimate is None:
            return False
        builds, hoped = len(hypothesis.log_ratios), self._hoped(hypothesis)
        if builds < FEWEST_TO_PROJECT:
            return hoped < log(1 + LEAST_EFFECT)
        last_level = self._alpha * (1 - (looks[-2] / last if len(looks) > 1 else 0.0))
        at_last = _Estimate(0.0, estimate.standard_error * sqrt(builds / last), estimate.freedom + last - builds)
        return hoped < max(at_last.interval(last_level / len(self._hypotheses)).high, log(1 + LEAST_EFFECT))

    def _hoped(self, hypothesis: _Hypothesis) -> float:
        """Return the size of an effect that is somewhat larger than the estimated one."""
        estimate = self._estimate(hypothesis)
        return inf if estimate is None else abs(estimate.mean) + HOPE * estimate.standard_error


def deviation_between(log_ratios: Sequence[float]) -> float | None:
    """Return the standard deviation of the log ratios of equal configs, one per build; None for fewer than 3."""
    return float(np.sqrt(np.mean(np.square(log_ratios)))) if len(log_ratios) >= 3 else None
