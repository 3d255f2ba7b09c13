"""Which techniques go together: measured beside each other, since one may hide another's gain, or take it away.

those that gain alone  ->  what else gains beside them  ->  larger batches and the like in place of those chosen
  ->  without what gains nothing any more
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.arms import Arm, Computes, arms_for
from paceline.tuneups.beside import beside_of
from paceline.tuneups.choosing import best_of_families, size_of, speedups, together
from paceline.tuneups.facts import Facts
from paceline.tuneups.judging import Standing
from paceline.tuneups.outcome import Beside, Question
from paceline.tuneups.peaks import PREDICTED_OOM
from paceline.tuneups.ring import Contest, Ring
from paceline.tuneups.statistics.judge import Noise

ROUNDS = 3
"""How many more techniques are looked for beside those that gain alone, and how often others are put in their place."""
HOPELESS = 0.9
"""An arm that is surely slower than this share of the baseline, or of the arm that it is to stand in for, is not tried
beside others."""


class Combining:
    """The search of one tune-up for the techniques that go together."""

    def __init__(
        self,
        config: ExperimentConfig,
        facts: Facts,
        ring: Ring,
        noise: Noise,
        arms: list[Arm],
        contests: dict[str, Contest],
    ) -> None:
        """Args:
        arms: all, with those that are not tried.
        contests: of each technique against the baseline, by its name. Those that have an effect beside others alone
            are added.
        """
        self._config, self._facts, self._ring, self._noise, self._contests = config, facts, ring, noise, contests
        self._closed = {arm.name for arm in arms if arm.why_not and not arm.why_not.startswith(PREDICTED_OOM)}
        self.arms = arms
        """Those that were measured beside others alone say so."""
        self.beside: list[Beside] = []
        """The result of all contests here, in their order."""

    def run(self, tried: Sequence[Arm], gained: Sequence[Arm]) -> list[Arm]:
        """The techniques that are fastest together, as far as there is time.

        Args:
            tried: those that were measured alone.
            gained: of these the best of each family that gains, the best of all first.
        """
        _, chosen = together(self._config, gained)
        for _ in range(ROUNDS if chosen else 0):
            others = [arm for arm in [*tried, *self._opened_by(chosen)] if self._may_help(arm, chosen)]
            if (added := self._gains_beside(chosen, others)) is None:
                break
            chosen = [*chosen, added]
        for _ in range(ROUNDS):
            if (swapped := self._with_a_stand_in(chosen, tried)) is None:
                break
            chosen = swapped
        return self._without_idle(chosen)

    def extended(self, chosen: list[Arm], tried: Sequence[Arm], spoiling: Collection[str]) -> list[Arm]:
        """Those chosen, with what gains beside them of that for which there was no time, and without what they do not
        need: of what computes the same, whose coming and going leaves the quality as it is.

        Args:
            spoiling: names of those that were taken away for the quality. What met them may gain without them.
        """
        met = {each.name for each in self.beside if each.speedup is not None and not {*each.others} & {*spoiling}}
        same = [arm for arm in tried if arm.computes == "same" and arm.name not in met]
        gained = best_of_families(speedups(self._contests, same))
        if not chosen and not gained:
            return []
        chosen = chosen or gained[:1]
        same.sort(key=lambda arm: arm not in gained)  # they are tried first where there is no time for all
        for _ in range(ROUNDS):
            opened = [arm for arm in self._opened_by(chosen) if arm.computes == "same"]
            others = [arm for arm in [*same, *opened] if self._may_help(arm, chosen)]
            if (added := self._gains_beside(chosen, others)) is None:
                break
            chosen = [*chosen, added]
        return self._without_idle(chosen, ["same"])

    def _contest(self, name: str, before: Sequence[Arm], after: Sequence[Arm]) -> Contest:
        first, second = (together(self._config, arms)[0] for arms in (before, after))
        return Contest(name, first, second, Standing(self._noise))

    def _opened_by(self, chosen: Sequence[Arm]) -> list[Arm]:
        """What has an effect beside those chosen alone, such as more batches ahead beside loader processes."""
        beside, _ = together(self._config, chosen)
        return [arm for arm in arms_for(beside, self._facts) if self._is_closed(arm) and not arm.why_not]

    def _is_closed(self, arm: Arm) -> bool:
        """Whether it was not tried alone, nor beside others until now."""
        contest = self._contests.get(arm.name)
        return arm.name in self._closed and (contest is None or not contest.duels)

    def _may_help(self, arm: Arm, chosen: Sequence[Arm]) -> bool:
        """Whether an arm is worth a try beside others: what hides its gain now may be gone then."""
        contest = self._contests.get(arm.name)
        if arm.saves_memory or any(arm.family == each.family for each in chosen):
            return False
        if contest is None:
            return True
        if contest.problem:
            return False
        return not contest.standing.pairs or contest.standing.interval.high > HOPELESS

    def _gains_beside(self, chosen: Sequence[Arm], others: Sequence[Arm]) -> Arm | None:
        """The arm that gains most beside those chosen; None when none does."""
        contests: dict[str, Contest] = {}
        for arm in others:
            if len(together(self._config, [*chosen, arm])[1]) > len(chosen):
                contests[arm.name] = self._contest(f"{arm.name} beside {_names(chosen)}", chosen, [*chosen, arm])
        self._ring.run(list(contests.values()), share=0.5)
        self._list(others, contests, f"measured beside {_names(chosen)}")
        self._tell("helps", contests, dict.fromkeys(contests, chosen))
        gained = speedups(contests, others)
        return max(gained, key=lambda each: each[1])[0] if gained else None

    def _list(self, arms: Sequence[Arm], contests: Mapping[str, Contest], where: str) -> None:
        """Those that have no contest of their own yet get this one."""
        for arm in arms:
            if arm.name in contests and self._is_closed(arm):
                self._contests[arm.name] = contests[arm.name]
                told = replace(arm, why=f"{arm.why} ({where})")
                self.arms = [told if each.name == arm.name else each for each in self.arms]

    def _with_a_stand_in(self, chosen: Sequence[Arm], tried: Sequence[Arm]) -> list[Arm] | None:
        """Those chosen with another member of a family in place of one, where that is faster beside the others: the
        knee of the batch size, say, lies higher once loading is fast. None where none is."""
        contests: dict[str, Contest] = {}
        others: dict[str, list[Arm]] = {}
        for arm in chosen:
            rest = [each for each in chosen if each is not arm]
            for other in (each for each in tried if self._may_stand_in(each, arm)):
                if len(together(self._config, [*rest, other])[1]) == len(chosen):
                    name = f"{other.name} for {arm.name} beside {_names(rest)}"
                    contests[other.name] = self._contest(name, chosen, [*rest, other])
                    others[other.name] = rest
        self._ring.run(list(contests.values()), share=0.5)
        self._tell("instead", contests, others)
        gained = speedups(contests, tried)
        if not gained:
            return None
        # those of one family with the one that they would stand in for, which is as fast as itself
        best = best_of_families([*((arm, 1.0) for arm in chosen), *gained])
        new = next((arm for arm in best if arm not in chosen), None)
        return None if new is None else [*(each for each in chosen if each.family != new.family), new]

    def _may_stand_in(self, other: Arm, arm: Arm) -> bool:
        """Whether it is of the same family, and not surely slower; of batches, larger."""
        contest, own = self._contests.get(other.name), self._contests.get(arm.name)
        if other.family != arm.family or other.name == arm.name or other.saves_memory:
            return False
        if arm.family == "batch" and size_of(other) <= size_of(arm):
            return False
        if contest is None or own is None or not (contest.standing.pairs and own.standing.pairs):
            return False
        return contest.standing.interval.high > HOPELESS * own.standing.interval.low

    def _without_idle(self, chosen: list[Arm], kinds: Collection[Computes] = ("same", "differently")) -> list[Arm]:
        """Those chosen without what gains nothing among them, of what computes as one of `kinds` says."""
        while len(chosen) > 1:
            asked = [arm for arm in chosen if arm.computes in kinds and not self._is_needed(arm, chosen)]
            if (idle := self._idle_in(chosen, asked)) is None:
                break
            chosen = [arm for arm in chosen if arm is not idle]
        return chosen

    def _is_needed(self, arm: Arm, chosen: Sequence[Arm]) -> bool:
        """Whether it has shown a gain over just these others already; in place of another it may still be idle."""
        others = tuple(each.name for each in chosen if each is not arm)
        met = [each for each in self.beside if each.question != "instead" and each.verdict == "gain"]
        return any((each.name, each.others) == (arm.name, others) for each in met)

    def _idle_in(self, chosen: Sequence[Arm], asked: Sequence[Arm]) -> Arm | None:
        """The arm of those asked without which the others are as fast; None when there is none, or no time to find
        out."""
        contests: dict[str, Contest] = {}
        others = {arm.name: [each for each in chosen if each is not arm] for arm in asked}
        for arm in asked:
            contests[arm.name] = self._contest(f"{_names(chosen)}, for {arm.name}", others[arm.name], chosen)
        self._ring.run(list(contests.values()), share=0.5)
        self._tell("needed", contests, others)
        met = [arm for arm in asked if contests[arm.name].standing.pairs]
        idle = [arm for arm in met if contests[arm.name].standing.final != "gain"]
        return min(idle, key=lambda arm: contests[arm.name].standing.interval.estimate, default=None)

    def _tell(self, question: Question, contests: Mapping[str, Contest], others: Mapping[str, Sequence[Arm]]) -> None:
        for name, contest in contests.items():
            told = beside_of(name, [arm.name for arm in others[name]], question, contest)
            self.beside = [each for each in self.beside if not told.is_about(each)] + [told]


def _names(arms: Sequence[Arm]) -> str:
    return " + ".join(arm.name for arm in arms)
