"""The quality of what is to be recommended: trained to the end, without what makes the model worse."""

from collections.abc import Mapping, Sequence

from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.arms import Arm
from paceline.tuneups.choosing import best_of_families, size_of, speedups, together
from paceline.tuneups.outcome import Note, Quality
from paceline.tuneups.qualities import Trainings
from paceline.tuneups.ring import Contest

FEWEST_SEEDS = 2
"""Trainings without which nothing can be said of the quality."""


class Checking:
    """The check of one tune-up."""

    def __init__(
        self, config: ExperimentConfig, trainings: Trainings, arms: Sequence[Arm], contests: Mapping[str, Contest]
    ) -> None:
        """Args:
        trainings: with those of the baseline.
        arms: all.
        contests: of each technique against the baseline, by its name.
        """
        self._config, self._trainings, self._arms, self._contests = config, trainings, arms, contests
        self.qualities: dict[str, Quality] = {}
        """By the name of the technique, as far as they were trained."""
        self.notes: list[str] = []

    def run(self, chosen: list[Arm]) -> tuple[list[Arm], Quality]:
        """Take away what makes the model worse, until it comes out as well as the baseline's."""
        while any(arm.computes == "differently" for arm in chosen):
            quality = self._quality_of(chosen)
            if quality.is_fine:
                for arm in chosen:
                    if arm.computes == "differently":
                        self.qualities.setdefault(arm.name, quality)
                return chosen, quality
            chosen = self._without_the_worst(chosen)
        return chosen, Quality("same")

    def _quality_of(self, arms: Sequence[Arm]) -> Quality:
        config, _ = together(self._config, arms)
        if len(self._trainings.values(self._config)) < FEWEST_SEEDS or not self._trainings.is_finite(self._config):
            return Quality("not measured", self._trainings.metric)
        self._trainings.train(config, self._trainings.seconds(self._config))
        if self._trainings.problem:
            text = f"the recommended config could not be trained: {self._trainings.problem}"
            self.notes.append(Note(text, "not-trained"))
        return self._trainings.compare(self._config, config)

    def _without_the_worst(self, chosen: list[Arm]) -> list[Arm]:
        """Without the arm that spoils the quality; in its place a smaller batch, or what it had left no room for."""
        risky = [arm for arm in chosen if arm.computes == "differently"]
        if len(risky) > 1:
            for arm in risky:
                self.qualities[arm.name] = self._quality_of([arm])
            spoiling = [arm for arm in risky if not self.qualities[arm.name].is_fine] or risky
        else:
            spoiling = risky
            self.qualities[risky[0].name] = self._quality_of(chosen)
        worst = min(spoiling, key=lambda arm: self.qualities[arm.name].difference or 0.0)
        smaller = self._smaller_batch(worst)
        rest = [arm for arm in chosen if arm is not worst] + ([smaller] if smaller is not None else [])
        return together(self._config, [*rest, *self._kept_out_by(worst, chosen)])[1]

    def _kept_out_by(self, worst: Arm, chosen: Sequence[Arm]) -> list[Arm]:
        """What gains and is not known to spoil, but sets a field that an arm has set until now; the best first."""
        families = {arm.family for arm in chosen}
        free = [(arm, gain) for arm, gain in speedups(self._contests, self._arms) if arm.family not in families]
        fine = [(arm, gain) for arm, gain in free if self.qualities.get(arm.name, Quality("same")).is_fine]
        return best_of_families([(arm, gain) for arm, gain in fine if arm.overrides.keys() & worst.overrides.keys()])

    def _smaller_batch(self, arm: Arm) -> Arm | None:
        if arm.family != "batch":
            return None
        known = [each for each, _ in speedups(self._contests, self._arms) if each.family == "batch"]
        return max((each for each in known if size_of(each) < size_of(arm)), key=size_of, default=None)
