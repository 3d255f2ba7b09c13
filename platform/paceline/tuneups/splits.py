"""Splits of a step's time, before and after, and the techniques that fix the bottleneck."""

from collections.abc import Mapping

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.techniques import Technique, fix_technique

SPLIT = "paceline.tuneups.job_execution:split"
STEPS = 20
"""Optimizer steps that the split of a step's time is taken over."""


class Splits:
    """The splits of one tune-up: shares of a step's time by what it goes into, without those that are none."""

    def __init__(self, bench: Bench, clock: Clock) -> None:
        self._bench, self._clock = bench, clock
        self._seconds = 0.0
        self.baseline: Mapping[str, float] = {}
        self.recommended: Mapping[str, float] = {}
        self.seconds_per_sample = 0.0
        """Of the baseline, of the global batch; 0 where its step could not be split."""
        self.bottleneck = ""
        """Of the baseline: its kind, and what was measured."""
        self.fixes: list[Technique] = []
        """Its fixes, in the order to try."""
        self.problem = ""
        """Why the baseline's step could not be split; empty when it could."""

    def split_baseline(self, config: ExperimentConfig) -> None:
        """Split a step of the config as it is, and name what holds it up."""
        begun = self._clock.elapsed
        answer = self._bench.do(Job(SPLIT, (part_of(config),), {"steps": STEPS}, self._clock.longest))
        self._seconds = self._clock.elapsed - begun
        self.problem = answer.problem
        if answer.problem:
            return
        told = answer.values
        self.baseline = _without_nothing(told["fractions"])
        self.seconds_per_sample = told["seconds_per_sample"]
        self.bottleneck = f"{told['kind']}: {told['reason']}"
        for number, fix in enumerate(told["fixes"], start=1):
            name = f"fix-{told['kind'].replace('_', '-')}-{number}"
            self.fixes.append(fix_technique(name, fix["overrides"], fix["why"]))

    def split_recommended(self, config: ExperimentConfig) -> None:
        """The same of the recommended config, where there is time for it and the baseline's could be split."""
        if self.baseline and self._clock.has(self._seconds):
            answer = self._bench.do(Job(SPLIT, (part_of(config),), {"steps": STEPS}, self._clock.longest))
            self.recommended = {} if answer.problem else _without_nothing(answer.values["fractions"])


def _without_nothing(fractions: Mapping[str, float]) -> dict[str, float]:
    return {part: share for part, share in fractions.items() if share > 0}
