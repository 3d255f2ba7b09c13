"""The quality of what is to be recommended: trained to the end, without what makes the model worse."""

from collections.abc import Mapping, Sequence

from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.choosing import best_of_families, size_of, speedups, together
from paceline.tuneups.outcome import Note, Quality
from paceline.tuneups.qualities import Trainings
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.techniques import Technique

FEWEST_SEEDS = 2
"""Trainings without which nothing can be said of the quality."""


class Checking:
    """The check of one tune-up."""

    def __init__(
        self,
        config: ExperimentConfig,
        trainings: Trainings,
        techniques: Sequence[Technique],
        screened: Mapping[str, ScreenedPair],
    ) -> None:
        """Args:
        trainings: with those of the baseline.
        techniques: all.
        screened: of each technique against the baseline, by its name.
        """
        self._config, self._trainings, self._techniques, self._screened = config, trainings, techniques, screened
        self.qualities: dict[str, Quality] = {}
        """By the name of the technique, as far as they were trained."""
        self.notes: list[str] = []

    def run(self, chosen: list[Technique]) -> tuple[list[Technique], Quality]:
        """Take away what makes the model worse, until it comes out as well as the baseline's."""
        while any(technique.computes == "differently" for technique in chosen):
            quality = self._quality_of(chosen)
            if quality.is_fine:
                for technique in chosen:
                    if technique.computes == "differently":
                        self.qualities.setdefault(technique.name, quality)
                return chosen, quality
            chosen = self._without_the_worst(chosen)
        return chosen, Quality("same")

    def _quality_of(self, techniques: Sequence[Technique]) -> Quality:
        config, _ = together(self._config, techniques)
        if len(self._trainings.values(self._config)) < FEWEST_SEEDS or not self._trainings.is_finite(self._config):
            return Quality("not measured", self._trainings.metric)
        self._trainings.train(config, self._trainings.seconds(self._config))
        if self._trainings.problem:
            text = f"the recommended config could not be trained: {self._trainings.problem}"
            self.notes.append(Note(text, "not-trained"))
        return self._trainings.compare(self._config, config)

    def _without_the_worst(self, chosen: list[Technique]) -> list[Technique]:
        """Without the technique that spoils the quality; in its place a smaller batch, or what it had left no room
        for."""
        risky = [technique for technique in chosen if technique.computes == "differently"]
        if len(risky) > 1:
            for technique in risky:
                self.qualities[technique.name] = self._quality_of([technique])
            spoiling = [technique for technique in risky if not self.qualities[technique.name].is_fine] or risky
        else:
            spoiling = risky
            self.qualities[risky[0].name] = self._quality_of(chosen)
        worst = min(spoiling, key=lambda technique: self.qualities[technique.name].difference or 0.0)
        smaller = self._smaller_batch(worst)
        rest = [technique for technique in chosen if technique is not worst] + (
            [smaller] if smaller is not None else []
        )
        return together(self._config, [*rest, *self._kept_out_by(worst, chosen)])[1]

    def _kept_out_by(self, worst: Technique, chosen: Sequence[Technique]) -> list[Technique]:
        """What gains and is not known to spoil, but sets a field that a technique has set until now; the best
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
