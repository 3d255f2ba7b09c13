"""A bench without workers: some fields of the config make its simulated training faster, slower or worse."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from paceline.batch_scaling.earlier_study import EarlierStudy
from paceline.bench.clock import Clock
from paceline.bench.jobs import Answer, Job
from paceline.tuneups.course import TuneupCourse
from paceline.tuneups.display import SilentWatcher
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.outcome import Beside, Findings, Note, TechniqueResult
from paceline.tuneups.screening import WINDOW_SECONDS
from support.clock import FakeClock
from support.toys import toy_config

FACTS = TuneupFacts("cpu", 1, 1, 1000, False, 0, 0, True, 96, 30)
CONSTRUCTION_SECONDS = 0.5
"""Of a trainer."""
PROCESS_SECONDS = 5.0
"""Of starting the process of a build."""
TRAINING_SECONDS = 2.0
ERRAND_SECONDS = 3.0

Speed = Callable[[dict[str, Any]], float]
Quality = Callable[[dict[str, Any]], float]


@dataclass
class SimulatedBench:
    """Does jobs in no time; the clock passes as if they had taken theirs."""

    clock: FakeClock
    speed: Speed
    """Samples a second of a config, as plain values."""
    accuracy: Quality = lambda config: 0.95
    """Its accuracy after training, likewise."""
    noise: float = 0.02
    """Standard deviation of the logarithm of the time of a window of `WINDOW_SECONDS`; a shorter one has more."""
    between_builds: float = 0.0
    """Standard deviation of the log ratio of two trainers of the same config, for as long as they live."""
    seed: int = 0
    facts: TuneupFacts = FACTS
    split_seconds: float = 0.0
    construction_seconds: float = CONSTRUCTION_SECONDS
    training_seconds: float = TRAINING_SECONDS
    seconds_per_sample: float = 0.0
    """Of training, by the steps alone."""
    metric: str = "val/accuracy"
    failing: Callable[[Job], str] = lambda job: ""
    warning: Callable[[dict[str, Any]], list[str]] = lambda config: []
    """Warnings when a config is built."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def do(self, job: Job) -> Answer:
        self.done[job.name] += 1
        problem = self.failing(job)
        if problem:
            return Answer(problem=problem, kind="error")
        configs = [json.loads(part.config_json) for part in job.configs]
        return Answer(getattr(self, f"_{job.name}")(configs, job))

    def _look(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        return asdict(self.facts)

    def _split(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.clock.now += self.split_seconds
        fractions = {"data": 0.7, "forward": 0.2, "backward": 0.1, "idle": 0.0}
        fix = {"overrides": {"data.drop_last": True}, "why": "it mends nothing"}
        told = {"fractions": fractions, "seconds_per_sample": self.seconds_per_sample}
        return {**told, "kind": "data", "share": 0.7, "reason": "it waits for data", "fixes": [fix]}

    def _benchmark(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        pairs = self._pairs(self.speed(configs[0]), self.speed(configs[1]), job)
        return {"pairs": pairs, "warnings": self.warning(configs[1]), "build_seconds": 0.1}

    def _build(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.clock.now += PROCESS_SECONDS
        speeds = [self.speed(config) for config in configs]
        rules = replace(job, options=job.options["rules"])
        pairs = [self._pairs(speeds[one], speeds[other], rules) for one, other, _ in job.options["comparisons"]]
        return {"benchmarks": [{"pairs": each} for each in pairs]}

    def _pairs(self, baseline: float, technique: float, job: Job) -> list[list[float]]:
        count = job.options["max_pairs"]
        self.clock.now += 2 * (self.construction_seconds + count * job.options["window_seconds"])
        drift = self._random.normal(0, 0.1, (count, 1))  # what hits both windows of a pair
        layout = self._random.normal(0, self.between_builds / 2**0.5, 2)
        spread = self.noise * (WINDOW_SECONDS / job.options["window_seconds"]) ** 0.5
        noise = self._random.normal(0, spread, (count, 2)) + drift + layout
        return (np.exp(noise) / [baseline, technique]).tolist()  # type: ignore[no-any-return]

    def _train(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        seconds = min(self.training_seconds, job.options["seconds"])
        self.clock.now += seconds
        seed = np.random.default_rng(configs[0]["seed"])  # what a seed does, it does to every config
        accuracy = self.accuracy(configs[0]) + seed.normal(0, 0.003) + self._random.normal(0, 0.001)
        metrics = {self.metric: float(accuracy)}
        return {"metrics": metrics, "wall_seconds": seconds, "stopped": seconds < self.training_seconds}

    def _memory(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.clock.now += ERRAND_SECONDS
        return {"bytes": 2**20 if configs[0]["checkpoint"]["keep"] == 5 else 2**21}

    def _predict(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.clock.now += ERRAND_SECONDS
        return {"bytes": [self._predicted(point) for point in job.options["points"]]}

    def _predicted(self, point: dict[str, Any]) -> int | None:
        if "scaling.max_failures" in point:
            return None  # of some it cannot be said
        return 2**31 if "optimizer.weight_decay" in point else 2**21


class RecordingListener(SilentWatcher):
    """Keeps the names of what was screened, and the warnings."""

    def __init__(self) -> None:
        self.screened_names: list[str] = []
        self.warnings: dict[str, str] = {}
        """By their codes."""

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        if kind == "warning":
            self.warnings[details["code"]] = details["message"]

    def screened(self, pair: Any) -> None:
        self.screened_names.append(pair.name)


PLANTED = {
    "nothing": {"parallel.timeout_seconds": 301.0},
    "faster": {"checkpoint.keep": 5},
    "slower": {"scaling.max_failures": 7},
    "spoils": {"optimizer.weight_decay": 0.5},
}
"""Techniques of known effect: fields that the bench looks at."""


def planted_config(budget_seconds: float = 600.0, **overrides: Any) -> Any:
    """A tune-up of the planted techniques and the known ones."""
    section = {"techniques": PLANTED, "budget_seconds": budget_seconds, "skip": ["compile", "log-every-50"]}
    changes = {"trainer.precision": "32-true", "scaling.num_workers": 1, "tuneup": section, **overrides}
    return toy_config().with_overrides(changes)


def is_set(tree: dict[str, Any], name: str) -> bool:
    """Whether a config has a planted technique."""
    ((key, value),) = PLANTED[name].items()
    section, field = key.split(".")
    return bool(tree[section][field] == value)


def planted_speed(tree: dict[str, Any]) -> float:
    """5 % faster, 5 % slower, and 20 % faster where the model comes out worse."""
    factor = 1.05 if is_set(tree, "faster") else 1.0
    factor /= 1.05 if is_set(tree, "slower") else 1.0
    return 1000 * factor * (1.2 if is_set(tree, "spoils") else 1.0)


def planted_accuracy(tree: dict[str, Any]) -> float:
    """Lower by 0.03 with `spoils`."""
    return 0.95 - (0.03 if is_set(tree, "spoils") else 0.0)


@dataclass
class Tuned:
    """A simulated tune-up that has ended."""

    findings: Findings
    bench: SimulatedBench
    clock: FakeClock
    listener: RecordingListener

    def technique(self, name: str) -> TechniqueResult:
        """The result of a technique."""
        return next(technique for technique in self.findings.techniques if technique.name == name)

    @property
    def verdicts(self) -> dict[str, str]:
        """Of the planted techniques."""
        return {
            technique.name: technique.verdict for technique in self.findings.techniques if technique.name in PLANTED
        }

    def met(self, name: str, question: str = "") -> list[Beside]:
        """The times that a technique was measured beside others."""
        return [each for each in self.findings.beside if each.name == name and question in ("", each.question)]

    @property
    def notes(self) -> dict[str, str]:
        """By their codes."""
        return {note.code: note for note in self.findings.notes if isinstance(note, Note)}


def tuned(
    speed: Speed = planted_speed,
    accuracy: Quality = planted_accuracy,
    config: Any = None,
    *,
    kind: type[SimulatedBench] = SimulatedBench,
    began: float = 0.0,
    scale_study: EarlierStudy | None = None,
    **options: Any,
) -> Tuned:
    """Run a tune-up on a bench with these options."""
    clock, listener = FakeClock(0.0), RecordingListener()
    bench = kind(clock, speed, accuracy, **options)
    config = config or planted_config()
    budget = Clock(config.tuneup.budget_seconds, began, clock)
    course = TuneupCourse(config, bench, budget, listener, scale_study=scale_study)
    return Tuned(course.run(), bench, clock, listener)
