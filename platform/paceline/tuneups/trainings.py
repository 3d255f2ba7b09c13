"""Trainings to the end over some seeds, and the metric at their ends."""

from math import isfinite
from typing import Any

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import TRAIN, Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.tuneup import TuneupConfig

PREFERRED = ("val/accuracy", "val/loss")
"""Metrics of quality if the config names none; the first one that the task reports is used."""


class Trainings:
    """Trains configs to the end, each with the same seeds, and stores the results."""

    def __init__(self, bench: Bench, clock: Clock, config: ExperimentConfig) -> None:
        self._bench, self._clock = bench, clock
        section = config.tuneup or TuneupConfig()
        self.seeds = [config.seed + number for number in range(section.seeds)]
        self.metric = section.metric or ""
        self.problem = ""
        """Reason why the last training failed; empty if it succeeded."""
        self.has_diverged = False
        """True if it failed since its loss was not finite."""
        self._known: dict[str, list[dict[str, Any]]] = {}

    def seconds(self, config: ExperimentConfig) -> float | None:
        """Return the median seconds of a config's trainings over its seeds; None without trainings."""
        took = sorted(each["wall_seconds"] for each in self._known.get(_key(config), []))
        return took[len(took) // 2] if took else None

    def values(self, config: ExperimentConfig) -> list[float]:
        """Return the metric at the end of each training, in order of the seeds."""
        return [each["metrics"][self.metric] for each in self._known.get(_key(config), [])]

    def is_finite(self, config: ExperimentConfig) -> bool:
        """Return True if the metric is finite at the end of each training."""
        return all(isfinite(value) for value in self.values(config))

    def train(self, config: ExperimentConfig, estimate: float | None = None) -> bool:
        """Train with all missing seeds, as far as time allows. Return True if all seeds are trained.

        A training that exceeds the time is ended, and does not count.

        Args:
            estimate: expected seconds of a training, if known.
        """
        self.problem, self.has_diverged = "", False
        done = self._known.setdefault(_key(config), [])
        for seed in self.seeds[len(done) :]:
            expected = self.seconds(config) or estimate or 0.0
            if not self._clock.has(expected):
                return False
            seeded = part_of(config.with_overrides({"seed": seed, "tuneup": None}))
            # asked to stop, it takes one more step, and an evaluation
            left, limit = self._clock.left, self._clock.left + self._clock.patience
            answer = self._bench.do(Job(TRAIN, (seeded,), {"seconds": left}, limit))
            self.problem, self.has_diverged = answer.problem, answer.kind == "diverged"
            if self.problem or answer.values["stopped"]:
                return False
            self._choose_metric(answer.values["metrics"])
            if self.metric not in answer.values["metrics"]:
                known = ", ".join(sorted(answer.values["metrics"]))
                lacking = self.metric or " or ".join(PREFERRED)
                self.problem = f"the task does not report {lacking}: set tuneup.metric to one of {known}"
                return False
            done.append(dict(answer.values))
        return True

    def _choose_metric(self, metrics: dict[str, float]) -> None:
        if not self.metric:
            self.metric = next((name for name in PREFERRED if name in metrics), "")


def _key(config: ExperimentConfig) -> str:
    return config.with_overrides({"seed": 0}).model_dump_json()
