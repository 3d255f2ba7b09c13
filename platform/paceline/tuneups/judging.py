"""What is known of one config against another: the pairs so far, their interval, and the verdict."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from paceline.tuneups.duel import Pair
from paceline.tuneups.statistics.intervals import Interval, speedup
from paceline.tuneups.statistics.judge import Judge, Noise
from paceline.tuneups.statistics.judge import Verdict as SpeedVerdict

MIN_PAIRS, MAX_PAIRS = 5, 40
PAIRS_OF_A_DUEL = 8
"""After so many, a clear difference can be told; a duel that is open then is resumed when its turn comes."""


class Standing:
    """The pairs of all duels between two configs, and what they say."""

    def __init__(self, noise: Noise) -> None:
        self.judge = Judge(noise, min_pairs=MIN_PAIRS, max_pairs=MAX_PAIRS)
        self.pairs: list[Pair] = []

    def add(self, pairs: Sequence[Pair]) -> None:
        """Take in the pairs of a duel."""
        for pair in pairs:
            self.pairs.append(pair)
            self.judge.add(pair.baseline, pair.technique)

    @property
    def verdict(self) -> SpeedVerdict | None:
        """`gain`, `no gain` or `regression`; None as long as more pairs may change it."""
        return self.judge.verdict

    @property
    def final(self) -> SpeedVerdict:
        """The verdict when no more pairs come: `no gain` where nothing was shown."""
        return copy(self.judge).decide()

    @property
    def interval(self) -> Interval:
        """The technique's speed over the baseline's."""
        return speedup([pair.baseline for pair in self.pairs], [pair.technique for pair in self.pairs])

    @property
    def pairs_left(self) -> int:
        """How many pairs may yet come."""
        return max(0, MAX_PAIRS - len(self.pairs))

    def options(self) -> dict[str, Any]:
        """What a duel is to be told: how many pairs it takes at the least and at the most."""
        most = min(PAIRS_OF_A_DUEL, self.pairs_left)
        return {"min_pairs": min(MIN_PAIRS, most), "max_pairs": most}
