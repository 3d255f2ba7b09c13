"""A small training whose step has delays that the config sets, and techniques of known effect planted in it."""

from contextlib import closing
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, get_args

import torch
from torch import nn
from torch.nn import functional as F

from paceline.bench.stepper import Stepper
from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.engine.dist_context import DistContext
from paceline.profiling.bottleneck import Kind
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.techniques import techniques_for

FEATURES, CLASSES = 32, 4
TRAIN, VALIDATION, BATCH = 768, 400, 64
DELAY = 0.0035
"""CPU seconds that each training step of the baseline waits for its batch, and again in its loss."""


def wait(seconds: float) -> None:
    """Be busy for so many seconds of this thread's CPU time.

    The computation beside it is CPU time of the same thread: what else the machine does stretches both alike, so that
    the wait's share of a step stays what it is.
    """
    until = thread_time() + seconds
    while thread_time() < until:
        pass


class Clusters:
    """Points around a centre for each class, given as whole batches; `spoiled` ones have labels of other points."""

    def __init__(self, samples: int, seed: int, seconds: float = 0.0, spoiled: bool = False) -> None:
        draw = torch.Generator().manual_seed(seed)
        centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
        targets = torch.arange(samples) % CLASSES
        self.features = centres[targets] + torch.randn(samples, FEATURES, generator=draw)
        self.targets = targets[torch.randperm(samples, generator=draw)] if spoiled else targets
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self.targets[index]

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        wait(self.seconds)
        return self.features[ids], self.targets[ids]


def clusters(seconds: float = DELAY, spoiled: bool = False) -> tuple[Clusters, Clusters]:
    """Training and validation set; the latter is never spoiled."""
    return Clusters(TRAIN, 1, seconds, spoiled), Clusters(VALIDATION, 2)


class Wait(nn.Module):
    """Passes on what it is given, after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            wait(self.seconds)
        return features


def net(width: int = 384, seconds: float = 0.0, label: str = "") -> nn.Module:
    """Three layers; `label` does nothing."""
    first, second, last = nn.Linear(FEATURES, width), nn.Linear(width, width), nn.Linear(width, CLASSES)
    return nn.Sequential(Wait(seconds), first, nn.ReLU(), second, nn.ReLU(), last)


class DelayedTask(Task):
    """Classification with a wait in the loss of each training step."""

    def __init__(self, model: nn.Module, seconds: float = DELAY) -> None:
        super().__init__(model)
        self.seconds = seconds

    def forward(self, batch: Any) -> TaskOutput:
        features, targets = batch
        if self.training:
            wait(self.seconds)
        logits = self.model(features)
        correct = (logits.argmax(dim=1) == targets).sum()
        return TaskOutput(F.cross_entropy(logits, targets, reduction="sum"), len(targets), {"accuracy": correct})


def planted_config(home: Path, seed: int, budget_seconds: float, speeds: dict[str, float]) -> ExperimentConfig:
    """A tune-up of nothing but planted techniques, in this process.

    Args:
        home: where it writes.
        speeds: by technique, how many times as fast as the baseline it is to be; see `technique` for their names.
    """
    base = validate(
        {
            "name": "planted",
            "seed": seed,
            "task": {"path": "support.tuneup.planted:DelayedTask"},
            "model": {"path": "support.tuneup.planted:net"},
            "data": {"path": "support.tuneup.planted:clusters", "global_batch_size": BATCH},
            "optimizer": {"name": "sgd", "lr": 0.05},
            "trainer": {"epochs": 2},
            "scaling": {"num_workers": 0},
            "storage": {"path": str(home / "runs")},
            "tracking": {"uri": f"sqlite:///{home}/mlflow.db"},
        }
    )
    step = step_seconds(base)
    techniques = {name: technique(name, step * (1 / speed - 1)) for name, speed in speeds.items()}
    section = {"budget_seconds": budget_seconds, "techniques": techniques, "skip": known(base)}
    return base.with_overrides({"tuneup": section})


def technique(name: str, seconds: float) -> dict[str, Any]:
    """What a planted technique sets, each another field, so that they go together; seconds are those of a step's."""
    return {
        "nothing": {"model.args": {"label": "nothing"}},
        "faster": {"task.args": {"seconds": DELAY + seconds}},
        "slower": {"model.args": {"seconds": seconds}},
        "spoils": {"data.args": {"seconds": DELAY + seconds, "spoiled": True}},  # trains on wrong labels
    }[name]


def step_seconds(config: ExperimentConfig, steps: int = 100) -> float:
    """CPU seconds of a step on one thread, the median."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with closing(Stepper(config, DistContext.current("cpu"))) as stepper:
            stepper.run(10)  # the first ones make buffers
            return median(_cpu_seconds(stepper) for _ in range(steps))
    finally:
        torch.set_num_threads(threads)


def _cpu_seconds(stepper: Stepper) -> float:
    begun = thread_time()
    stepper.run(1)
    return thread_time() - begun


def known(config: ExperimentConfig) -> list[str]:
    """The names of all techniques that a tune-up knows by itself, and of the fixes that it might find."""
    facts = TuneupFacts("cpu", 1, 2, 1, False, 0, 0, True, TRAIN, VALIDATION)
    fixes = [f"fix-{kind.replace('_', '-')}-{number}" for kind in get_args(Kind) for number in (1, 2, 3, 4)]
    return [*(each.name for each in techniques_for(config, facts)), *fixes]
