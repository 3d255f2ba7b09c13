"""Runs on ranks of which one is killed in the middle of a step."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import Callback, TrainContext
from paceline.config import ExperimentConfig
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.tasks.base import TaskOutput
from support.ranks import end_ranks
from support.toys import PointsTask


class Kill(Callback):
    """SIGKILL for the process of a rank, at the end of an optimizer step and before it is saved."""

    def __init__(self, step: int, rank: int = 1) -> None:
        self.step = step
        self.rank = rank

    def on_step_end(self, ctx: TrainContext) -> None:
        if (ctx.step, ctx.rank) == (self.step, self.rank):
            os.kill(os.getpid(), signal.SIGKILL)


class WritingTask(PointsTask):
    """Writes the ids of its samples to a file, a line for each micro batch, so that they outlive the process."""

    file: Path | None = None

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        if self.training and self.file is not None:
            with self.file.open("a") as file:
                file.write(" ".join(map(str, self.seen[-1])) + "\n")
        return output


@dataclass
class Part:
    """One launch of a run, as a rank saw it."""

    start: int
    """The optimizer step that it was resumed from."""
    end: int
    sha256: str
    events: list[tuple[str, dict[str, Any]]]
    metrics: dict[str, float]


def train_part(
    ranks: DistContext, config: ExperimentConfig, folder: Path, file: str = "", extended_from_step: int | None = None
) -> Part:
    """Train to the end, from the newest checkpoint in the folder.

    Args:
        file: name for the ids of the samples, in the folder above the checkpoints.
    """
    reporter = MemoryReporter()
    trainer = build_trainer(config, ranks, reporter, folder, extended_from_step=extended_from_step)
    if file:
        trainer.state.task.file = folder.parent / f"{file}-{ranks.rank}"
    start = trainer.state.position.step
    outcome = trainer.fit()
    return Part(start, outcome.step, outcome.weights_sha256, reporter.events, outcome.metrics)


def kill_part(config: ExperimentConfig, folder: Path, step: int, **options: Any) -> None:
    """Start the run on two ranks, of which the second is killed at a step."""
    killed = config.with_overrides({"callbacks": [*config.callbacks, {"path": Kill, "args": {"step": step}}]})
    endings = end_ranks(train_part, 2, killed, folder, **options)
    assert endings[1].error == "died without a word", endings[1].error
    assert endings[0].error is not None, "the other rank has not noticed"
