"""Splits of a step's time, of the baseline and of the recommended config, and the fixes for the bottleneck."""

from collections.abc import Mapping

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.techniques import Technique, fix_technique

SPLIT = "paceline.tuneups.job_execution:split"
STEPS = 20
"""Number of optimizer steps that the split is measured over."""


class Splits:
    """Splits of one tune-up: shares of a step's time by part of the step, without parts that take no time."""

    def __init__(self, bench: Bench, clock: Clock) -> None:
        self._bench, self._clock = bench, clock
        self._seconds = 0.0
        self.baseline: Mapping[str, float] = {}
        self.recommended: Mapping[str, float] = {}
        self.seconds_per_sample = 0.0
        """Seconds per sample of the baseline's global batch; 0 if its step could not be split."""
        self.bottleneck = ""
        """Bottleneck of the baseline: its kind, and a description of the measurement."""
        self.fixes: list[Technique] = []
        """Fixes for the bottleneck, in the order to try."""
        self.problem = ""
        """Reason why the baseline's step could not be split; empty if it could."""

    def split_baseline(self, config: ExperimentConfig) -> None:
        """Split a step of the config as it is, and name its bottleneck."""
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
        """Split a step of the recommended config, if there is time and the baseline's step could be split."""
        if self.baseline and self._clock.has(self._seconds):
            answer = self._bench.do(Job(SPLIT, (part_of(config),), {"steps": STEPS}, self._clock.longest))
            self.recommended = {} if answer.problem else _without_nothing(answer.values["fractions"])


def _without_nothing(fractions: Mapping[str, float]) -> dict[str, float]:
    return {part: share for part, share in fractions.items() if share > 0}
