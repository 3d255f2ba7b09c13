"""Search for techniques that work together: one may hide another's gain, or remove it.

those that gain alone  ->  others of their families in their place  ->  others that gain beside them
  ->  again others of their families  ->  a larger batch, with what gains only beside it
  ->  without those that gain nothing any more
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from statistics import geometric_mean

from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.combinations import KNEE, best_of_families, size_of, speedups, together
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.outcome import Beside, Question
from paceline.tuneups.peaks import PREDICTED_OOM
from paceline.tuneups.screening import ScreenedPair, Screening
from paceline.tuneups.statistics.sequential_test import LEAST_EFFECT
from paceline.tuneups.technique_results import beside_of
from paceline.tuneups.techniques import LOADERS_ENOUGH, Computes, Technique, techniques_for

ROUNDS = 3
"""Most techniques that are added to those that gain alone, and most replacements of one by another of its family."""
REVEALING = 1.5
"""Speedup of a combination from which on it may reveal the gains of others: a technique that saves 1.4 % of a step
saves 2 % of one that is 1.5 times as fast."""
HOPELESS = 0.9
"""A technique that is surely slower than this share of the speed of the baseline, or of the technique that it would
replace, is not tried beside others."""


class Combining:
    """Search of one tune-up for techniques that work together."""

    def __init__(
        self,
        config: ExperimentConfig,
        facts: TuneupFacts,
        screening: Screening,
        techniques: list[Technique],
        screened: dict[str, ScreenedPair],
    ) -> None:
        """Args:
        techniques: all techniques, including those that are not tried.
        screened: pair of each technique and the baseline, by the technique's name. Techniques that have an effect only
            beside others are added.
        """
        self._config, self._facts, self._screening, self._screened = config, facts, screening, screened
        self._closed = {
            technique.name
            for technique in techniques
            if technique.why_not and not technique.why_not.startswith((PREDICTED_OOM, LOADERS_ENOUGH))
        }
        self.techniques = techniques
        """List of all techniques. The `why` of a technique that was measured only beside others says so."""
        self.beside: list[Beside] = []
        """Results of all combinations screened here, in order."""
        self._replacements: tuple[list[Technique], dict[str, ScreenedPair]] = [], {}
        """Techniques chosen when replacements were last screened, and the pair of each replacement by its name."""

    def run(self, tried: Sequence[Technique], gained: Sequence[Technique]) -> list[Technique]:
        """Return the techniques that are fastest together, as far as time allows.

        Args:
            tried: techniques that were measured alone.
            gained: the best of these in each family that gains, the best of all first.
        """
        _, chosen = together(self._config, gained)
        if self._may_reveal(chosen):  # first, since the batch size matters most, and time may be short
            chosen = self._with_another_of_a_family(chosen, tried) or chosen
        chosen = self._with_what_gains(chosen, tried)
        for _ in range(ROUNDS):
            if (swapped := self._with_another_of_a_family(chosen, tried)) is None:
                break
            chosen = swapped
        if (moved := self._with_larger_batch_and_another(chosen, tried)) is not None:
            chosen = self._with_what_gains(moved, tried)
        return self._without_idle(chosen)

    def _with_what_gains(self, chosen: list[Technique], tried: Sequence[Technique]) -> list[Technique]:
        """Add those that gain beside the others, one after the other."""
        for _ in range(ROUNDS if chosen else 0):
            if (added := self._gains_beside(chosen, self._candidates_beside(chosen, tried))) is None:
                break
            chosen = [*chosen, added]
        return chosen

    def _candidates_beside(self, chosen: Sequence[Technique], tried: Sequence[Technique]) -> list[Technique]:
        hidden = tried if self._may_reveal(chosen) else []
        return [technique for technique in [*hidden, *self._opened_by(chosen)] if self._may_help(technique, chosen)]

    def _with_larger_batch_and_another(
        self, chosen: Sequence[Technique], tried: Sequence[Technique]
    ) -> list[Technique] | None:
        """Replace the batch by a larger one that alone is nearly as fast, if a technique gains enough beside that one:
        short number formats and memory layouts may need large tensors. Returns None where none does."""
        rest = [technique for technique in chosen if technique.family != "batch"]
        batch = self._larger_batch(chosen, tried)
        if batch is None:
            return None
        larger = [*rest, batch]
        candidates = [
            each for each in self._candidates_beside(larger, tried) if "trainer.compile" not in each.overrides
        ]
        if not self._screening.has_time_for(len(candidates) + 1 + len(larger) + 1):
            return None  # without repeats, each of those chosen can be asked whether it is needed
        if (added := self._gains_beside(larger, candidates)) is None:
            return None
        pair = self._pair(f"{batch.name} + {added.name} in place of another batch", chosen, [*larger, added])
        self._screening.run([pair], share=0.5)
        is_faster = (
            bool(pair.pairs) and not pair.problem and pair.seen == "faster" and pair.interval.estimate * KNEE > 1
        )
        return [*larger, added] if is_faster else None

    def _larger_batch(self, chosen: Sequence[Technique], tried: Sequence[Technique]) -> Technique | None:
        """Return the fastest larger batch that the last replacements have not shown to be slower than `HOPELESS`; None
        if there is none."""
        of, screened = self._replacements
        own = next((technique for technique in chosen if technique.family == "batch"), None)
        if own is None or of != list(chosen):
            return None
        pairs = {
            name: pair
            for name, pair in screened.items()
            if pair.pairs and not pair.problem and pair.interval.high > HOPELESS
        }
        larger = [
            each for each in tried if each.family == "batch" and each.name in pairs and size_of(each) > size_of(own)
        ]
        return max(larger, key=lambda technique: pairs[technique.name].interval.estimate, default=None)

    def extended(
        self, chosen: list[Technique], tried: Sequence[Technique], spoiling: Collection[str]
    ) -> list[Technique]:
        """Add techniques that gain beside those chosen and that there was no time for before, and leave out idle ones.
        Only techniques that keep the numerics are added, so that the quality stays the same.

        Args:
            spoiling: names of the techniques removed for their quality. Those measured beside them may gain now.
        """
        met = {each.name for each in self.beside if each.speedup is not None and not {*each.others} & {*spoiling}}
        same = [technique for technique in tried if technique.computes == "same" and technique.name not in met]
        gained = best_of_families(speedups(self._screened, same))
        if not chosen and not gained:
            return []
        chosen = chosen or gained[:1]
        same.sort(key=lambda technique: technique not in gained)  # tried first if there is no time for all
        for _ in range(ROUNDS):
            opened = [technique for technique in self._opened_by(chosen) if technique.computes == "same"]
            hidden = same if self._may_reveal(chosen) else [each for each in same if each in gained]
            others = [technique for technique in [*hidden, *opened] if self._may_help(technique, chosen)]
            if (added := self._gains_beside(chosen, others)) is None:
                break
            chosen = [*chosen, added]
        return self._without_idle(chosen, ["same"])

    def _pair(self, name: str, before: Sequence[Technique], after: Sequence[Technique]) -> ScreenedPair:
        first, second = (together(self._config, techniques)[0] for techniques in (before, after))
        return ScreenedPair(name, first, second)

    def _may_reveal(self, chosen: Sequence[Technique]) -> bool:
        """Return True if those chosen shorten a step so much that the gain of others, which save the same time as
        before, may count beside them, though not alone."""
        speeds = [self._screened[each.name].interval.estimate for each in chosen if each.name in self._screened]
        return prod(speeds) >= REVEALING

    def _opened_by(self, chosen: Sequence[Technique]) -> list[Technique]:
        """Return techniques that have an effect only beside those chosen, such as a longer prefetch with loader
        processes."""
        beside, _ = together(self._config, chosen)
        return [
            technique
            for technique in techniques_for(beside, self._facts)
            if self._is_closed(technique) and not technique.why_not
        ]

    def _is_closed(self, technique: Technique) -> bool:
        """Return True if it was tried neither alone nor beside others yet."""
        pair = self._screened.get(technique.name)
        return technique.name in self._closed and (pair is None or not pair.benchmarks)

    def _may_help(self, technique: Technique, chosen: Sequence[Technique]) -> bool:
        """Return True if a technique is worth a try beside others, which may reveal a gain that is hidden now."""
        pair = self._screened.get(technique.name)
        if technique.saves_memory or any(technique.family == each.family for each in chosen):
            return False
        if pair is None:
            return True
        if pair.problem:
            return False
        return not pair.pairs or pair.interval.high > HOPELESS

    def _gains_beside(self, chosen: Sequence[Technique], others: Sequence[Technique]) -> Technique | None:
        """Return the technique that gains most beside those chosen; None if none gains."""
        screened: dict[str, ScreenedPair] = {}
        for technique in others:
            if len(together(self._config, [*chosen, technique])[1]) > len(chosen):
                screened[technique.name] = self._pair(
                    f"{technique.name} beside {_names(chosen)}", chosen, [*chosen, technique]
                )
        self._screening.run(list(screened.values()), share=0.5)
        self._list(others, screened, f"measured beside {_names(chosen)}")
        self._report("helps", screened, dict.fromkeys(screened, chosen))
        gained = speedups(screened, others)
        return max(gained, key=lambda each: each[1])[0] if gained else None

    def _list(self, techniques: Sequence[Technique], screened: Mapping[str, ScreenedPair], where: str) -> None:
        """Record the pair of each technique that has no pair of its own yet."""
        for technique in techniques:
            if technique.name in screened and self._is_closed(technique):
                self._screened[technique.name] = screened[technique.name]
                told = replace(technique, why=f"{technique.why} ({where})")
                self.techniques = [told if each.name == technique.name else each for each in self.techniques]

    def _with_another_of_a_family(
        self, chosen: Sequence[Technique], tried: Sequence[Technique]
    ) -> list[Technique] | None:
        """Replace one of those chosen by another of its family that is faster beside the others: the best batch size
        may be larger once loading is fast. Returns None where none is faster."""
        if self._replacements[0] == chosen:
            return None  # that was asked just now
        screened: dict[str, ScreenedPair] = {}
        others: dict[str, list[Technique]] = {}
        for technique in chosen:
            rest = [each for each in chosen if each is not technique]
            for other in (each for each in tried if self._may_replace(each, technique)):
                if len(together(self._config, [*rest, other])[1]) == len(chosen):
                    name = f"{other.name} in place of {technique.name}"
                    name += f", beside {_names(rest)}" if rest else ""
                    screened[other.name] = self._pair(name, chosen, [*rest, other])
                    others[other.name] = rest
        self._screening.run(list(screened.values()), share=0.5)
        self._replacements = list(chosen), screened
        self._report("instead", screened, others)
        gained = speedups(screened, tried)
        if not gained:
            return None
        # compare the members of a family with the one that they would replace, whose speedup is 1
        best = best_of_families([*((technique, 1.0) for technique in chosen), *gained])
        new = next((technique for technique in best if technique not in chosen), None)
        return None if new is None else [*(each for each in chosen if each.family != new.family), new]

    def _may_replace(self, other: Technique, technique: Technique) -> bool:
        """Return True if it is of the same family and not surely slower; a batch must also be larger."""
        pair, own = self._screened.get(other.name), self._screened.get(technique.name)
        if other.family != technique.family or other.name == technique.name or other.saves_memory:
            return False
        if technique.family == "batch" and size_of(other) <= size_of(technique):
            return False
        if pair is None or own is None or not (pair.pairs and own.pairs):
            return False
        return pair.interval.high > HOPELESS * own.interval.low

    def _without_idle(
        self, chosen: list[Technique], kinds: Collection[Computes] = ("same", "differently")
    ) -> list[Technique]:
        """Leave out the chosen techniques of the given kinds that add no gain to the others."""
        while len(chosen) > 1:
            asked = [
                technique
                for technique in chosen
                if technique.computes in kinds and not self._is_needed(technique, chosen)
            ]
            if (idle := self._idle_in(chosen, asked)) is None:
                break
            chosen = [technique for technique in chosen if technique is not idle]
        return chosen

    def _is_needed(self, technique: Technique, chosen: Sequence[Technique]) -> bool:
        """Return True if it has already shown a gain beside exactly these others. Replacements do not count."""
        others = tuple(each.name for each in chosen if each is not technique)
        met = [each for each in self.beside if each.question != "instead" and each.seen == "faster"]
        return any((each.name, each.others) == (technique.name, others) for each in met)

    def _idle_in(self, chosen: Sequence[Technique], asked: Sequence[Technique]) -> Technique | None:
        """Return the technique among those asked without which the others are as fast; None if each is needed, or if
        there is no time to measure it."""
        screened: dict[str, ScreenedPair] = {}
        others = {technique.name: [each for each in chosen if each is not technique] for technique in asked}
        for technique in asked:
            screened[technique.name] = self._pair(
                f"{_names(chosen)}, for {technique.name}", others[technique.name], chosen
            )
        self._screening.run(list(screened.values()), share=0.5)
        self._report("needed", screened, others)
        met = [technique for technique in asked if screened[technique.name].pairs]
        idle = [
            technique
            for technique in met
            if screened[technique.name].seen != "faster" and not self._has_gained(technique, others[technique.name])
        ]
        return min(idle, key=lambda technique: screened[technique.name].interval.estimate, default=None)

    def _has_gained(self, technique: Technique, others: Sequence[Technique]) -> bool:
        """Return True if a technique gains by the mean of its looks beside nearly these others. Each look is one build,
        and one build may differ from the next by more than a technique gains."""
        names = {each.name for each in others}
        looks = [
            each.speedup
            for each in self.beside
            if each.name == technique.name
            and each.question != "instead"
            and each.speedup is not None
            and len(names.symmetric_difference(each.others)) <= 1
        ]
        return len(looks) > 1 and geometric_mean(looks) >= 1 + LEAST_EFFECT

    def _report(
        self, question: Question, screened: Mapping[str, ScreenedPair], others: Mapping[str, Sequence[Technique]]
    ) -> None:
        for name, pair in screened.items():
            told = beside_of(name, [technique.name for technique in others[name]], question, pair)
            self.beside = [each for each in self.beside if not told.is_about(each)] + [told]


def _names(techniques: Sequence[Technique]) -> str:
    return " + ".join(technique.name for technique in techniques)
