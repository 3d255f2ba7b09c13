"""Bottlenecks to be found and mended: each is planted into a small training, which without it is held up by nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.utils.data import Dataset

from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trainer import Trainer
from paceline.profiling.splitting import split_steps
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

FEATURES, CLASSES = 64, 4
DELAY = 0.03
"""Seconds a step that each plant takes on a machine with nothing else to do: far more than the step itself."""
TIMES_PLAIN = 6
"""A plant takes at least so many times as long as a step without it, measured on the same ranks just before: beside
other programs, an exchange between two processes takes longer than `DELAY`."""
MICRO = 16
SAMPLES = 8192


class Rows(Dataset[Any]):
    """Samples `(features, target)`, each of which takes a while to load."""

    def __init__(self, samples: int, delay: float) -> None:
        self.features = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(0))
        self.delay = delay

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.delay:
            sleep(self.delay)
        return self.features[index], index % CLASSES


def rows(samples: int = SAMPLES, validation: int = 64, delay: float = 0.0) -> tuple[Rows, Rows]:
    """Training and validation set."""
    return Rows(samples, delay), Rows(validation, 0.0)


def net(width: int = 256, layers: int = 3) -> nn.Module:
    """Layers of matrix products."""
    inner = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), *inner, nn.Linear(width, CLASSES))


class SleepyTask(Task):
    """Classification that sleeps in forward, on one rank or on all."""

    def __init__(self, model: nn.Module, delay: float = 0.0, rank: int | None = None) -> None:
        super().__init__(model)
        self.delay, self.rank = delay, rank

    def forward(self, batch: Any) -> TaskOutput:
        features, targets = batch
        loss = F.cross_entropy(self.model(features), targets, reduction="sum")
        if self.training and self.delay and (self.rank is None or self.rank == dist.get_rank()):
            sleep(self.delay)
        return TaskOutput(loss, len(targets), {})


class SlowReporter(MemoryReporter):
    """Takes a while to hear of metrics."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        sleep(self.delay)
        super().metrics(step, values)


def slow_link(trainer: Trainer, delay: float) -> None:
    """Let each exchange of DDP's gradients take so much longer, beside the computation, as a slow network would."""

    def late(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done = default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

        def after(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            sleep(delay)
            return future.value()

        return done.then(after)

    trainer.model.register_comm_hook(None, late)


@dataclass(frozen=True)
class Plant:
    """A training with one bottleneck, and what it is without."""

    ranks: int = 1
    step_delay: float = 0.0
    """Seconds a step that all the delays below add up to; 0 for a plant without any."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Of `base_config`, with `__` for dots."""
    planted: dict[str, Any] = field(default_factory=dict)
    """Further ones, which are the bottleneck or a part of it."""
    link_delay: float = 0.0
    report_delay: float = 0.0
    saves: bool = False

    def scaled(self, ranks: DistContext) -> "Plant":
        """This plant with longer delays where a step without it takes long, as beside other programs."""
        if not self.step_delay:
            return self
        plain = self.build(self.config(is_planted=False), ranks, is_planted=False)
        longest = max(each.step_seconds for each in split_steps(plain, 20, 4).ranks)
        return self.longer(max(1.0, TIMES_PLAIN * longest / self.step_delay))

    def longer(self, times: float) -> "Plant":
        """This plant with delays so many times as long."""
        changed = {
            name: {**value, "delay": times * value["delay"]} if isinstance(value, dict) and "delay" in value else value
            for name, value in self.planted.items()
        }
        return replace(
            self,
            planted=changed,
            step_delay=times * self.step_delay,
            link_delay=times * self.link_delay,
            report_delay=times * self.report_delay,
        )

    def config(self, is_planted: bool = True) -> ExperimentConfig:
        """With or without the bottleneck."""
        changes = {"scaling__num_workers": self.ranks, **self.overrides, **(self.planted if is_planted else {})}
        return base_config().with_overrides({key.replace("__", "."): value for key, value in changes.items()})

    def build(
        self, config: ExperimentConfig, ranks: DistContext, folder: Any = None, is_planted: bool = True
    ) -> Trainer:
        """A trainer on this rank; what of the bottleneck is not in the config comes with it."""
        reporter = SlowReporter(self.report_delay) if self.report_delay and is_planted else MemoryReporter()
        trainer = build_trainer(config, ranks, reporter, folder if self.saves and is_planted else None)
        if self.link_delay and is_planted:
            slow_link(trainer, self.link_delay)
        return trainer


def base_config() -> ExperimentConfig:
    """A training in which nothing stands out but the computation."""
    return validate(
        {
            "name": "plain",
            "task": {"path": SleepyTask},
            "model": {"path": net},
            "data": {"path": rows, "micro_batch_size": MICRO},
            "optimizer": {"name": "sgd", "lr": 0.001},
            "trainer": {"epochs": 2, "log_every_n_steps": 1000},
            "scaling": {"num_workers": 1},
        }
    )


TINY = {"model__args": {"width": 64, "layers": 4}}
PLANTS: dict[str, Plant] = {
    "data": Plant(step_delay=DELAY, planted={"data__args": {"delay": DELAY / MICRO, "samples": 1024}}),
    "small_batch": Plant(
        overrides={**TINY, "data__micro_batch_size": 256, "data__args": {"samples": SAMPLES}},
        planted={"data__micro_batch_size": 2},
    ),
    "synchronisation": Plant(step_delay=DELAY, planted={"task__args": {"delay": DELAY}}),
    "communication": Plant(ranks=2, step_delay=DELAY, link_delay=DELAY),
    "straggler": Plant(ranks=2, step_delay=DELAY, planted={"task__args": {"delay": DELAY, "rank": 1}}),
    "logging": Plant(ranks=2, step_delay=DELAY, planted={"trainer__log_every_n_steps": 1}, report_delay=DELAY),
    # held up by its own work alone
    "compute": Plant(overrides={"model__args": {"width": 768}, "data__micro_batch_size": 128}),
}
"""By the kind of bottleneck that is to be named."""

ACCELERATED = Plant(
    overrides={"task__args": {"delay": 0.6 * DELAY}},  # stands in for a GPU: the cores are free while it computes
    planted={"data__args": {"delay": DELAY / MICRO}},
    step_delay=DELAY,
)
TO_MEND: dict[str, tuple[Plant, str]] = {
    "loaders": (ACCELERATED, "data.num_workers"),
    "cache": (PLANTS["data"], "data.cache"),
    "small_batch": (PLANTS["small_batch"], "data.micro_batch_size"),
    "communication": (PLANTS["communication"], "trainer.gradient_accumulation_steps"),
    "logging": (PLANTS["logging"], "trainer.log_every_n_steps"),
}
"""A plant, and the field that its fix is known by. Whether loaders or a cache come first, the cores decide."""
