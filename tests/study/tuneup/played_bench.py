"""A bench without workers: it answers as if some fields of the config made training faster, slower or worse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from paceline.cluster.listener import SilentListener
from paceline.study.tuneup.facts import Facts
from paceline.study.tuneup.jobs import Answer, Job
from paceline.study.tuneup.ring import WINDOW_SECONDS

FACTS = Facts("cpu", 1, 1, 1000, False, 0, 0, True, 96, 30)
DUEL_SECONDS = 9.0
"""Of a duel with whole windows."""
TRAINING_SECONDS = 2.0
ERRAND_SECONDS = 3.0

Speed = Callable[[dict[str, Any]], float]
Quality = Callable[[dict[str, Any]], float]


class PlayedClock:
    """Time that passes when something is played."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PlayedBench:
    """Args:
    speed: samples a second of a config, as plain values.
    accuracy: its accuracy after training, likewise.
    noise: standard deviation of the logarithm of a window's time.
    """

    def __init__(
        self,
        clock: PlayedClock,
        speed: Speed,
        accuracy: Quality = lambda config: 0.95,
        noise: float = 0.02,
        seed: int = 0,
    ) -> None:
        self._clock, self._speed, self._accuracy, self._noise = clock, speed, accuracy, noise
        self._random = np.random.default_rng(seed)
        self.done: Counter[str] = Counter()
        self.facts = FACTS
        self.split_seconds = 0.0
        self.failing: Callable[[Job], str] = lambda job: ""
        self.warning: Callable[[dict[str, Any]], list[str]] = lambda config: []
        """What is told when a config is built."""
        self.training_seconds = TRAINING_SECONDS
        self.metric = "val/accuracy"
        """What `accuracy` is of."""
        self.seconds_per_sample = 0.0
        """What the steps alone take."""

    def do(self, job: Job) -> Answer:
        self.done[job.kind] += 1
        problem = self.failing(job)
        if problem:
            return Answer(problem=problem, kind="error")
        configs = [json.loads(part.config_json) for part in job.configs]
        ways = {
            "look": self._look,
            "split": self._split,
            "duel": self._duel,
            "train": self._train,
            "memory": self._memory,
            "predict": self._predict,
        }
        return Answer(ways[job.kind](configs, job))

    def _look(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        return asdict(self.facts)

    def _split(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self._clock.now += self.split_seconds
        fractions = {"data": 0.7, "forward": 0.2, "backward": 0.1, "idle": 0.0}
        fix = {"overrides": {"data.drop_last": True}, "why": "it mends nothing"}
        told = {"fractions": fractions, "seconds_per_sample": self.seconds_per_sample}
        return {**told, "kind": "data", "share": 0.7, "reason": "it waits for data", "fixes": [fix]}

    def _duel(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self._clock.now += DUEL_SECONDS * job.options["window_seconds"] / WINDOW_SECONDS
        pairs = []
        for _ in range(job.options["max_pairs"]):
            drift = self._random.normal(0, 0.1)  # what hits both windows of a pair
            noise = self._random.normal(0, self._noise, 2) + drift
            pairs.append(
                [float(np.exp(each) / self._speed(config)) for each, config in zip(noise, configs, strict=True)]
            )
        return {"pairs": pairs, "warnings": self.warning(configs[1]), "build_seconds": 0.1}

    def _train(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        seconds = min(self.training_seconds, job.options["seconds"])
        self._clock.now += seconds
        seed = np.random.default_rng(configs[0]["seed"])  # what a seed does, it does to every config
        accuracy = self._accuracy(configs[0]) + seed.normal(0, 0.003) + self._random.normal(0, 0.001)
        metrics = {self.metric: float(accuracy)}
        return {"metrics": metrics, "wall_seconds": seconds, "stopped": seconds < self.training_seconds}

    def _memory(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self._clock.now += ERRAND_SECONDS
        return {"bytes": 2**20 if configs[0]["checkpoint"]["keep"] == 5 else 2**21}

    def _predict(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self._clock.now += ERRAND_SECONDS
        return {"bytes": [self._predicted(point) for point in job.options["points"]]}

    def _predicted(self, point: dict[str, Any]) -> int | None:
        if "scaling.max_failures" in point:
            return None  # of some it cannot be said
        return 2**31 if "optimizer.weight_decay" in point else 2**21


class Recording(SilentListener):
    """A watcher that keeps what it was told."""

    def __init__(self) -> None:
        self.contests: list[str] = []
        self.arms_told: list[str] = []

    def arms(self, arms: Any) -> None:
        self.arms_told = [arm.name for arm in arms]

    def contest(self, contest: Any) -> None:
        self.contests.append(contest.name)
