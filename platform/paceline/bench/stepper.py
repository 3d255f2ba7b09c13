"""A trainer that runs some steps at a time, for as long as somebody wants to measure it."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import torch

from paceline.cluster.initial_weights import weights_finder
from paceline.config.batch_sizes import at_largest_stage
from paceline.config.experiment import ExperimentConfig
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.prepare import apply_flags
from paceline.engine.reporter import MemoryReporter

ENDLESS = {
    "trainer.epochs": None,
    "trainer.max_steps": 10**12,
    "trainer.evaluate_every_n_epochs": 0,
    "trainer.evaluate_every_n_steps": None,
    "sweep": None,
    "scale": None,
    "tuneup": None,
}
"""What makes a training continue for as long as it is asked for steps, with nothing but steps in it."""


CALIBRATION_SECONDS = 0.1


class Window(NamedTuple):
    """A stretch of training that was measured."""

    steps: int
    samples: int
    seconds: float

    @property
    def seconds_per_sample(self) -> float:
        """Seconds per sample of the global batch."""
        return self.seconds / self.samples


class Stepper:
    """The training of a config, step by step. It saves nothing, and tells nobody.

    Several may live in one process and take turns: what a config says of the process as a whole is set again for each.
    Every rank must have the same ones, and call the same methods.

    Raises:
        PacelineError: the config cannot be trained.
    """

    def __init__(self, config: ExperimentConfig, ranks: DistContext) -> None:
        begun = perf_counter()
        self._ranks = ranks
        self._config = config.with_overrides({**ENDLESS, **at_largest_stage(config)})
        reporter = Quiet()
        self.trainer = build_trainer(self._config, ranks, reporter, find_weights=weights_finder(config))
        self.trainer.open()
        self._steps = self.trainer.steps()
        self.ahead = self._steps_ahead(config)
        """Optimizer steps that loader processes hold ready."""
        self.warnings = reporter.warnings
        """Warnings when it was built."""
        self.build_seconds = perf_counter() - begun

    def run(self, steps: int) -> Window:
        """So many optimizer steps, and how long they took; the device is waited for before and after."""
        apply_flags(self._config.trainer)
        self._settle()
        position = self.trainer.state.position
        samples, begun = position.samples, perf_counter()
        for _ in range(steps):
            next(self._steps)
        self._settle()
        return Window(steps, position.samples - samples, perf_counter() - begun)

    def calibrate(self) -> float:
        """Seconds of a step; the same on all ranks, since the others must take as many as rank 0."""
        self.run(2)  # what is made at the first steps: buffers, optimizer state, compiled code
        steps, seconds = 1, 0.0
        while True:
            seconds = self._ranks.from_first([self.run(steps).seconds])[0]
            if seconds >= CALIBRATION_SECONDS:
                return seconds / steps
            steps *= 2

    def catch_up(self) -> None:
        """The steps that do not count after another training has had its turn: loader processes have loaded ahead
        meanwhile, and those batches cost nothing now."""
        if self.ahead:
            self.run(self.ahead)

    def close(self) -> None:
        """Release its loader processes."""
        self.trainer.close()

    def _steps_ahead(self, config: ExperimentConfig) -> int:
        order = self.trainer.map_style.order
        per_step = max(1, order.global_batch_size // (order.micro_batch_size * self._ranks.world_size))
        return -(-config.data.num_workers * config.data.prefetch_factor // per_step)

    def _settle(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)


class Quiet(MemoryReporter):
    """Keeps nothing but warnings: a training that is measured for long would fill the memory with its points."""

    @property
    def warnings(self) -> list[str]:
        """The messages of all warnings so far."""
        return [str(details.get("message", "")) for kind, details in self.events if kind == "warning"]

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def event(self, kind: str, **details: Any) -> None:
        if kind == "warning":
            super().event(kind, **details)
