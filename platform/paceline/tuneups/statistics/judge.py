"""When the pairs of a duel are enough, and whether they show a gain, no gain or a regression."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Literal

import numpy as np

from paceline.tuneups.statistics.intervals import (
    Interval,
    as_ratios,
    log_ratios,
    signed_rank_interval,
    smallest_alpha,
)

Verdict = Literal["gain", "no gain", "regression"]

LEAST_EFFECT = 0.02
"""Differences in speed below this are none, unless something else is said."""

ALPHA = 0.05
"""Of techniques that differ in nothing, at most so many are called a gain or a regression; all looks at one technique
together."""

NORMAL_PER_DEVIATION = 1.4826
"""Standard deviation of normal values, as a multiple of their median deviation."""

_GROWTH = 1.25


@dataclass(frozen=True)
class Noise:
    """What duels of the baseline against itself have shown."""

    floor: float = 0.0
    """Speeds that differ by no more are not different, as a part of 1: what equal techniques differed by for good."""
    spread: float = 0.0
    """Standard deviation of the log ratio of a pair, estimated from its median deviation; 0 if unknown."""

    @classmethod
    def of(cls, *duels: Sequence[tuple[float, float]]) -> "Noise":
        """From A/A duels, each with its pairs of seconds per sample, the same thing measured twice.

        The floor is the largest difference among the duels that their own interval (95 %) shows to be one: two builds
        of the same thing can differ for good, by the layout of their memory. A duel whose interval holds 1 shows none,
        however noisy it is: that noise is in the interval of each technique, too.

        Raises:
            ValueError: when a time is no positive number.
        """
        logs = [log_ratios([pair[0] for pair in duel], [pair[1] for pair in duel]) for duel in duels if len(duel)]
        found = [signed_rank_interval(each, 0.05) for each in logs]
        shown = [abs(each.estimate) for each in found if each.low > 0 or each.high < 0]
        deviations = [abs(each - it.estimate) for each, it in zip(logs, found, strict=True) if len(each) > 1]
        spread = NORMAL_PER_DEVIATION * float(np.median(np.concatenate(deviations))) if deviations else 0.0
        return cls(exp(max(shown, default=0.0)) - 1, spread)


class Judge:
    """Decides a technique's duel as early as is safe.

    It looks at the pairs some eight times, each time at about a quarter more of them, and takes the signed-rank
    interval (see `intervals.speedup`). Looking again and again finds something in the end, so the looks share one
    `alpha`: of it, the part n / `max_pairs` may have been spent by the n-th pair (Lan and DeMets 1983, "Discrete
    sequential boundaries for clinical trials", Biometrika 70; linear spending). The errors of the looks are simply
    added up, as if no look resembled another: that gives away some power, and holds however the noise is correlated.
    A look at so few pairs that no signs are unlikely enough is left out, and the next one has its part.

    A verdict, once given, stays. It is

    - `no gain` when the interval lies within the least effect (or the noise floor, if that is larger) on both sides,
    - `gain` or `regression` when the interval lies beyond the noise floor, and the estimate is at least the least
      effect,
    - nothing yet otherwise.

    Five pairs decide nothing: that all have the same sign by chance is likelier than 5 %. With `alpha` 0.05 and 40
    pairs, the first look that can decide is at the eighth pair; with `max_pairs` below 6 none can.
    """

    def __init__(
        self,
        noise: Noise | None = None,
        least_effect: float = LEAST_EFFECT,
        min_pairs: int = 5,
        max_pairs: int = 40,
        alpha: float = ALPHA,
    ) -> None:
        """Begin without pairs.

        Args:
            least_effect: the smallest difference that matters, as a part of 1.
            min_pairs: no verdict before so many.
            max_pairs: the verdict is there by then.

        Raises:
            ValueError: for numbers that make no sense together.
        """
        if least_effect <= 0 or not 0 < alpha < 1 or not 1 <= min_pairs <= max_pairs:
            raise ValueError("needs a positive least effect, alpha between 0 and 1, and 1 <= min_pairs <= max_pairs")
        self.noise = noise or Noise()
        self.min_pairs, self.max_pairs, self.alpha = min_pairs, max_pairs, alpha
        self.floor = log(1 + self.noise.floor)
        """As a logarithm."""
        self.margin = max(log(1 + least_effect), self.floor)
        """What the log of a speed must differ by to matter."""
        self.interval = Interval(1.0, 0.0, inf)
        """Of the speedup, as the newest look saw it; it holds for all looks together."""
        self.verdict: Verdict | None = None
        """None: measure more."""
        self._logs: list[float] = []
        self._spent = 0.0
        self._looks = planned_looks(min_pairs, max_pairs)

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self._logs)

    @property
    def logs(self) -> list[float]:
        """Logarithm of the speedup of each pair."""
        return list(self._logs)

    def add(self, baseline_seconds: float, technique_seconds: float) -> None:
        """Take a pair: seconds per sample of windows next to each other, whose order was drawn at random.

        Raises:
            ValueError: when a time is no positive number.
        """
        self._logs.append(float(log_ratios([baseline_seconds], [technique_seconds])[0]))
        if self.verdict is not None:
            return
        if len(self) >= self.max_pairs:
            self.decide()
        elif len(self) in self._looks:
            self._look(self.alpha * len(self) / self.max_pairs - self._spent)

    def decide(self) -> Verdict:
        """The verdict at the end of the budget: `no gain` when nothing is shown; spends what is left of `alpha`.

        What ends the budget must not be how the pairs came out.
        """
        if self.verdict is None:
            self._look(self.alpha - self._spent)
            self.verdict = self.verdict or "no gain"
        return self.verdict

    @property
    def is_shown(self) -> bool:
        """Whether the interval supports the verdict: a `no gain` at the end of the budget may only mean "not seen"."""
        within = -self.margin <= log(self.interval.low or 1e-300) and log(self.interval.high) <= self.margin
        return self.verdict in ("gain", "regression") or (self.verdict == "no gain" and within)

    def _look(self, alpha: float) -> None:
        if len(self) < 2 or alpha < smallest_alpha(len(self)):
            return
        self._spent += alpha
        logs = signed_rank_interval(np.asarray(self._logs), alpha)
        self.interval = as_ratios(logs)
        if -self.margin <= logs.low and logs.high <= self.margin:
            self.verdict = "no gain"
        elif logs.low > self.floor and logs.estimate >= self.margin:
            self.verdict = "gain"
        elif logs.high < -self.floor and logs.estimate <= -self.margin:
            self.verdict = "regression"


def planned_looks(min_pairs: int, max_pairs: int) -> frozenset[int]:
    """After how many pairs a judge looks: each time about a quarter more, counted back from the last."""
    looks, wanted = {max_pairs}, max_pairs / _GROWTH
    while wanted >= max(min_pairs, 2):
        looks.add(round(wanted))
        wanted /= _GROWTH
    return frozenset(looks)
