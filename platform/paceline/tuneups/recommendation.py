"""Recommendation of a tune-up: confirmed against the baseline, cut back where it is not, without idle parts."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite

from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.combinations import together
from paceline.tuneups.confirmation import (
    AA,
    RECOMMENDATION_ALPHAS,
    TOGETHER,
    ConfigPair,
    Confirmation,
    Confirmed,
    Share,
)
from paceline.tuneups.outcome import Quality
from paceline.tuneups.quality_gate import QualityGate
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.statistics.sequential_test import Comparison
from paceline.tuneups.techniques import Technique


class Recommendation:
    """Recommended techniques of one tune-up, and all comparisons made to confirm them."""

    def __init__(
        self,
        config: ExperimentConfig,
        confirmation: Confirmation,
        screened: Mapping[str, ScreenedPair],
        gate: QualityGate,
    ) -> None:
        """Create an empty recommendation.

        Args:
            config: the baseline.
            screened: screening of each technique by its name, and of A/A.
        """
        self._config, self._confirmation, self._screened, self._gate = config, confirmation, screened, gate
        self._alphas = list(RECOMMENDATION_ALPHAS)
        self.chosen: list[Technique] = []
        self.quality = Quality("same")
        self.together: Comparison | None = None
        """Comparison of the recommended config with the baseline; without one, that of the last tried combination."""
        self.techniques: dict[str, Comparison] = {}
        """Comparison of each technique alone, by name, for those that builds were made for."""
        self.shares: Mapping[str, Share] = {}
        """Speedup that each recommended technique adds to the others, by name."""

    def confirm(self, candidates: list[Technique], quality: Quality, techniques: Sequence[Technique]) -> None:
        """Confirm techniques together, and each that looked different in the screening alone.

        Args:
            quality: quality of the candidates together.
            techniques: all techniques. If no combination is confirmed, the best one confirmed alone is recommended.
        """
        self._confirm_together(candidates, quality)
        if not self.chosen:
            self._recommend_best([each for each in techniques if not each.saves_memory])

    def _confirm_together(self, candidates: list[Technique], quality: Quality) -> None:
        _, candidates = together(self._config, candidates)
        found = self._confirm_once(candidates, self._to_confirm(candidates))
        while candidates:
            if self._is_confirmed(found):
                self._recommend(candidates, quality, found)
                self._leave_out_idle(found)
                return
            is_measured = found.together is not None or TOGETHER in self._confirmation.problems
            if not self._alphas or not is_measured or len(candidates) == 1:
                return
            with self._confirmation.keeping_time():  # trainings must not take all of it
                candidates, quality = self._gate.admit(_without_least(candidates, found.shares))
            found = self._confirm_once(candidates, {}) if candidates else Confirmed()

    def _is_confirmed(self, found: Confirmed) -> bool:
        """Return True if the combination gains, and no build of it failed."""
        is_faster = found.together is not None and found.together.verdict == "gain"
        return is_faster and TOGETHER not in self._confirmation.problems

    def _recommend(self, chosen: list[Technique], quality: Quality, found: Confirmed) -> None:
        self.chosen, self.quality, self.shares = chosen, quality, found.shares
        self.together = found.together

    def _leave_out_idle(self, found: Confirmed) -> None:
        """Leave out each technique that adds nothing to the others, if the others are confirmed without it."""
        shares = found.shares
        needed = [each for each in self.chosen if each.name not in shares or shares[each.name].adds_something]
        if not needed or len(needed) == len(self.chosen) or (len(needed) == 1 and self._recommend_best(needed)):
            return
        if not self._alphas:
            return
        with self._confirmation.keeping_time():
            quality = self._gate.quality_of(needed)
        if not quality.is_fine:
            return
        before, again = self.together, self._confirm_once(needed, {})
        self.together = before
        if self._is_confirmed(again):
            self._recommend(needed, quality, again)
            # if there was no time to measure the shares again, keep those measured beside the idle techniques
            known = {each.name: found.shares[each.name] for each in needed if each.name in found.shares}
            self.shares = known | {name: each for name, each in again.shares.items() if isfinite(each.interval.low)}

    def _recommend_best(self, techniques: Sequence[Technique]) -> bool:
        """Recommend the fastest technique that was confirmed to gain alone. Return True if one was found."""
        gained = [each for each in techniques if self._gains_alone(each)]
        for technique in sorted(gained, key=lambda each: -self.techniques[each.name].interval.estimate):
            quality = self._gate.quality_of([technique])
            if quality.is_fine:
                self._recommend([technique], quality, Confirmed(self.techniques[technique.name]))
                return True
        return False

    def _gains_alone(self, technique: Technique) -> bool:
        """Return True if it was confirmed to gain over the baseline itself."""
        found, pair = self.techniques.get(technique.name), self._screened.get(technique.name)
        is_faster = found is not None and found.verdict == "gain" and technique.name not in self._confirmation.problems
        return is_faster and pair is not None and pair.baseline == self._config

    def _confirm_once(self, chosen: Sequence[Technique], alone: Mapping[str, ConfigPair]) -> Confirmed:
        shares = {each.name: self._without(each, chosen) for each in chosen} if len(chosen) > 1 else {}
        config = together(self._config, chosen)[0] if chosen else None
        is_first = len(self._alphas) == len(RECOMMENDATION_ALPHAS)  # it keeps time for the others
        found = self._confirmation.run(
            config, alone, shares, self._alphas.pop(0), can_cut_back=is_first and bool(shares)
        )
        self.techniques |= found.techniques
        self.together = found.together or self.together
        problems = self._confirmation.problems
        if len(chosen) == 1 and TOGETHER in problems:
            problems[chosen[0].name] = problems[TOGETHER]
        elif len(chosen) == 1 and found.together is not None:
            self._take_for_alone(chosen[0], found.together)
        return found

    def _take_for_alone(self, technique: Technique, found: Comparison) -> None:
        """Store the comparison of the only candidate with the baseline as that of the technique alone."""
        pair = self._screened.get(technique.name)
        is_same = pair is None or pair.baseline == self._config
        if technique.name not in self.techniques or (is_same and found.verdict == "gain"):
            self.techniques[technique.name] = found

    def _to_confirm(self, chosen: Sequence[Technique]) -> dict[str, ConfigPair]:
        """Return the pair of each technique in which the screening saw a difference.

        Those chosen are first, then the others by speed, since the last ones are left out if time is short. A technique
        that is the only candidate is not listed: it is measured as the candidate.
        """
        seen = {name: pair for name, pair in self._screened.items() if name != AA and pair.is_promising}
        names = [each.name for each in chosen if each.name in self._screened and self._screened[each.name].pairs]
        others = sorted((name for name in seen if name not in names), key=lambda name: -seen[name].interval.estimate)
        if len(chosen) == 1 and names and self._screened[names[0]].baseline == self._config:
            names = []
        return {
            name: ConfigPair(self._screened[name].baseline, self._screened[name].technique)
            for name in [*names, *others]
        }

    def _without(self, technique: Technique, chosen: Sequence[Technique]) -> ExperimentConfig:
        return together(self._config, [each for each in chosen if each is not technique])[0]


def _without_least(chosen: Sequence[Technique], shares: Mapping[str, Share]) -> list[Technique]:
    """Leave out the technique that adds least; the last one if the shares are not known."""
    least = min(reversed(chosen), key=lambda each: shares[each.name].interval.estimate if each.name in shares else inf)
    return [each for each in chosen if each is not least]
