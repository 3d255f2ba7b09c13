"""Quality gate: the recommended config trains as well as the baseline; techniques that make it worse are removed."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan

from paceline.config.experiment import ExperimentConfig
from paceline.config.tuneup import TuneupConfig
from paceline.direction import Direction, default_mode
from paceline.tuneups.combinations import best_of_families, size_of, speedups, together
from paceline.tuneups.outcome import Note, Quality
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.statistics.equivalence import compare_quality
from paceline.tuneups.techniques import Technique
from paceline.tuneups.trainings import Trainings

FEWEST_SEEDS = 2
"""Fewest trainings of each config for a verdict on quality."""
RELATIVE_MARGINS: Mapping[Direction, float] = {"max": 0.01, "min": 0.05}
"""Margin if the config sets none, as a share of the baseline's mean: for a metric such as accuracy (`max`), and for a
loss (`min`), which differs by percents from seed to seed."""
GATE_ERROR = 0.05
"""Probability that a config that is worse by the margin passes, over all comparisons of a tune-up. Each comparison
spends half of the rest; several at a time spend equal parts."""
CLAIM_ERROR = 0.005
"""Probability that a technique that is as good as the baseline gets the verdict `worse`, spent in the same way."""


class QualityGate:
    """Compares the quality of each config with the baseline's, once per config."""

    def __init__(
        self,
        config: ExperimentConfig,
        trainings: Trainings,
        techniques: Sequence[Technique],
        screened: Mapping[str, ScreenedPair],
    ) -> None:
        """Create a gate that has not compared anything yet.

        Args:
            trainings: trainings, including those of the baseline.
            techniques: all techniques.
            screened: screening of each technique against the baseline, by its name.
        """
        self._config, self._trainings, self._techniques, self._screened = config, trainings, techniques, screened
        self._section = config.tuneup or TuneupConfig()
        self._known: dict[str, Quality] = {}
        self._left = 1.0
        """Share of `GATE_ERROR` and `CLAIM_ERROR` that is not spent yet."""
        self.qualities: dict[str, Quality] = {}
        """Quality by the name of the technique, for those that were trained."""
        self.notes: list[str] = []

    def admit(self, chosen: list[Technique]) -> tuple[list[Technique], Quality]:
        """Return the techniques without those that make the model worse, and the quality of the rest."""
        removed: set[str] = set()
        while any(technique.computes == "differently" for technique in chosen):
            quality = self.quality_of(chosen)
            if quality.is_fine:
                for technique in chosen:
                    if technique.computes == "differently":
                        self.qualities.setdefault(technique.name, quality)
                return chosen, quality
            chosen = self._without_the_worst(chosen, removed)
        return chosen, Quality("same")

    def quality_of(self, techniques: Sequence[Technique], shared_by: int = 1) -> Quality:
        """Return the quality of techniques together, training them if there is time.

        Args:
            shared_by: number of comparisons, including this one, that spend equal parts of the errors.
        """
        if all(technique.computes == "same" for technique in techniques):
            return Quality("same")
        config, _ = together(self._config, techniques)
        if len(self._trainings.values(self._config)) < FEWEST_SEEDS or not self._trainings.is_finite(self._config):
            return Quality("not measured", self._trainings.metric)
        key = config.model_dump_json()
        if key in self._known:
            return self._known[key]
        is_trained = self._trainings.train(config, self._trainings.seconds(self._config))
        if problem := self._trainings.problem:
            names = " + ".join(technique.name for technique in techniques)
            self.notes.append(Note(f"{names} could not be trained: {problem}", "not-trained"))
            quality = self._failed()
        else:
            quality = self._compared(config, shared_by)
        if is_trained or problem or quality.verdict != "not measured":
            self._known[key] = quality  # otherwise there may be time later
        return quality

    def _failed(self) -> Quality:
        """Return the quality of a config whose training failed with some seed: the others prove nothing for it."""
        metric = self._trainings.metric
        if not self._trainings.has_diverged:
            return Quality("not measured", metric)
        mode = self._section.mode or default_mode(metric)
        return Quality("worse", metric, nan, (-inf, inf), len(self._trainings.seeds), mode=mode)

    def _compared(self, config: ExperimentConfig, shared_by: int) -> Quality:
        """Compare the quality over the seeds that both have."""
        first, second = self._trainings.values(self._config), self._trainings.values(config)
        count = min(len(first), len(second))
        if count < FEWEST_SEEDS:
            return Quality("not measured", self._trainings.metric)
        mode = self._section.mode or default_mode(self._trainings.metric)
        margin = self._section.margin or RELATIVE_MARGINS[mode] * abs(sum(first) / len(first))
        if not margin:
            text = f"{self._trainings.metric} of the baseline is 0, and no margin follows from it: set tuneup.margin"
            self.notes.append(Note(text, "no-margin"))
            return Quality("not measured", self._trainings.metric)
        share = self._spend(shared_by)
        found = compare_quality(
            first[:count], second[:count], margin, mode, error=share * GATE_ERROR, claim_error=share * CLAIM_ERROR
        )
        difference, low, high = found.difference
        if mode == "min":  # a lower loss is better
            difference, low, high = -difference, -high, -low
        return Quality(
            verdict=found.verdict,
            metric=self._trainings.metric,
            difference=difference,
            interval=(low, high),
            seeds=count,
            is_not_inferior=found.is_not_inferior,
            margin=margin,
            is_margin_relative=self._section.margin is None,
            seeds_needed=found.seeds_needed if found.verdict == "undecided" else None,
            mode=mode,
        )

    def _spend(self, shared_by: int) -> float:
        """Return the share of the errors that the next comparison may spend, and mark it as spent."""
        share = self._left / (1 + shared_by)
        self._left -= share
        return share

    def _without_the_worst(self, chosen: list[Technique], removed: set[str]) -> list[Technique]:
        """Remove the technique with the worst quality. Put in its place a smaller batch, or techniques that it
        excluded.

        Args:
            removed: names of the techniques that were removed before, which do not come back; gets that of this one.
        """
        risky = [technique for technique in chosen if technique.computes == "differently"]
        for number, technique in enumerate(risky):
            alone = [technique] if len(risky) > 1 else chosen
            self.qualities[technique.name] = self.quality_of(alone, shared_by=len(risky) - number)
        spoiling = [technique for technique in risky if not self.qualities[technique.name].is_fine] or risky
        worst = min(spoiling, key=lambda technique: _difference(self.qualities[technique.name]))
        removed.add(worst.name)
        smaller = self._smaller_batch(worst)
        rest = [technique for technique in chosen if technique is not worst] + (
            [smaller] if smaller is not None else []
        )
        returning = [each for each in self._kept_out_by(worst, chosen) if each.name not in removed]
        return together(self._config, [*rest, *returning])[1]

    def _kept_out_by(self, worst: Technique, chosen: Sequence[Technique]) -> list[Technique]:
        """Return techniques that gain, are not known to be worse, and set a field of the removed technique; the best
        first."""
        families = {technique.family for technique in chosen}
        free = [
            (technique, gain)
            for technique, gain in speedups(self._screened, self._techniques)
            if technique.family not in families
        ]
        fine = [
            (technique, gain) for technique, gain in free if self.qualities.get(technique.name, Quality("same")).is_fine
        ]
        return best_of_families(
            [(technique, gain) for technique, gain in fine if technique.overrides.keys() & worst.overrides.keys()]
        )

    def _smaller_batch(self, technique: Technique) -> Technique | None:
        if technique.family != "batch":
            return None
        known = [each for each, _ in speedups(self._screened, self._techniques) if each.family == "batch"]
        return max((each for each in known if size_of(each) < size_of(technique)), key=size_of, default=None)


def _difference(quality: Quality) -> float:
    """Return the improvement; minus infinity if the training has diverged."""
    difference = quality.difference or 0.0
    return difference if isfinite(difference) else -inf
