"""A trainer that runs a few steps at a time, to measure them."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import torch

from paceline.cluster.initial_weights import weights_finder
from paceline.cluster.preflight import worker_threads
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
"""Overrides for a training that makes as many steps as requested, and nothing but steps."""


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
    """The training of a config, step by step. It saves and reports nothing.

    Several may exist in one process and take turns: each one sets the config's process-wide flags and its number of
    threads again before its steps. Every rank must have the same steppers, and call the same methods.

    Raises:
        PacelineError: the config cannot be trained.
    """

    def __init__(self, config: ExperimentConfig, ranks: DistContext) -> None:
        begun = perf_counter()
        torch.set_num_threads(worker_threads(config))
        self._ranks = ranks
        self._config = config.with_overrides({**ENDLESS, **at_largest_stage(config)})
        reporter = Quiet()
        self.trainer = build_trainer(self._config, ranks, reporter, find_weights=weights_finder(config))
        self.trainer.open()
        self._steps = self.trainer.steps()
        self.ahead = self._steps_ahead(config)
        """Number of optimizer steps that loader processes have prefetched."""
        self.warnings = reporter.warnings
        """Warnings raised while the trainer was built."""
        self.build_seconds = perf_counter() - begun

    def run(self, steps: int) -> Window:
        """Run this number of optimizer steps, and return their time. Synchronises the device before and after."""
        apply_flags(self._config.trainer)
        torch.set_num_threads(worker_threads(self._config))
        self._settle()
        position = self.trainer.state.position
        samples, begun = position.samples, perf_counter()
        for _ in range(steps):
            next(self._steps)
        self._settle()
        return Window(steps, position.samples - samples, perf_counter() - begun)

    def calibrate(self) -> float:
        """Return the seconds per step as measured on rank 0, since all ranks must run the same number of steps."""
        self.run(2)  # the first steps make buffers, optimizer state and compiled code
        steps, seconds = 1, 0.0
        while True:
            seconds = self._ranks.from_first([self.run(steps).seconds])[0]
            if seconds >= CALIBRATION_SECONDS:
                return seconds / steps
            steps *= 2

    def catch_up(self) -> None:
        """Run the steps that do not count after another training's turn: the loader processes have prefetched their
        batches in the meantime, so that loading them costs nothing."""
        if self.ahead:
            self.run(self.ahead)

    def close(self) -> None:
        """Stop the loader processes."""
        self.trainer.close()

    def _steps_ahead(self, config: ExperimentConfig) -> int:
        order = self.trainer.map_style.order
        per_step = max(1, order.global_batch_size // (order.micro_batch_size * self._ranks.world_size))
        return -(-config.data.num_workers * config.data.prefetch_factor // per_step)

    def _settle(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)


class Quiet(MemoryReporter):
    """Keeps only warnings: the metrics of a long measurement would fill the memory."""

    @property
    def warnings(self) -> list[str]:
        """Messages of all warnings so far."""
        return [str(details.get("message", "")) for kind, details in self.events if kind == "warning"]

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def event(self, kind: str, **details: Any) -> None:
        if kind == "warning":
            super().event(kind, **details)
