"""`data.batch_size_schedule`: the global batch size as a function of the samples trained on, and the resulting steps.

A step has the batch size of the stage that is active at its first sample. An epoch's last step is short, or left out,
as without a schedule. So a position in the training is a pure function of the number of steps, and a resumed run finds
its stage from the number of samples alone.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from paceline.config.steps import epoch_steps

if TYPE_CHECKING:
    from paceline.config.sections import TrainerConfig

SCHEDULE = "data.batch_size_schedule"
ENDLESS = 2**62
"""Number of samples of a training set that never ends."""


@dataclass(frozen=True)
class BatchSizeSchedule:
    """Stages in the order of their samples; the first begins at 0."""

    starts: tuple[int, ...]
    """Samples trained on at the beginning of each stage, ascending."""
    sizes: tuple[int, ...]
    """Global batch size of each stage."""

    def stage_at(self, samples: int) -> int:
        """Return the index of the stage that is active after `samples` training samples."""
        return bisect_right(self.starts, samples) - 1

    def end_of(self, stage: int) -> float:
        """Return the number of samples at the end of a stage; infinite for the last one."""
        return self.starts[stage + 1] if stage + 1 < len(self.starts) else math.inf


class StepPosition(NamedTuple):
    """Position in a training: steps, epochs and samples so far."""

    step: int
    epoch: int
    """Number of finished epochs."""
    epoch_samples: int
    """Number of samples trained on in the current epoch."""
    samples: int
    """Number of samples trained on since the start."""


class StepRun(NamedTuple):
    """Consecutive steps of one stage: whole epochs, or a part of one epoch."""

    start: StepPosition
    batch_size: int
    steps: float
    """Number of steps of the part, or of each whole epoch."""
    epochs: float
    """Number of whole epochs, infinite for the last run; 0 for a part of one."""


@dataclass(frozen=True)
class ScheduledSteps:
    """The steps of a training on a set of known size."""

    schedule: BatchSizeSchedule
    epoch_samples: int
    """Number of samples of the training set."""
    drop_last: bool

    def batches(self, epoch_samples: int, samples: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield first sample, end and stage of each step to the end of an epoch, and True for the epoch's last step.

        Args:
            epoch_samples: number of samples trained on in the epoch so far.
            samples: number of samples trained on since the start.
        """
        stage, start = self.schedule.stage_at(samples), epoch_samples
        is_over = self._ends(start, stage)
        while not is_over:
            stop = min(start + self.schedule.sizes[stage], self.epoch_samples)
            next_stage = self.schedule.stage_at(samples + stop - epoch_samples)
            is_over = self._ends(stop, next_stage)
            yield start, stop, stage, is_over
            start, stage = stop, next_stage

    def _ends(self, epoch_samples: int, stage: int) -> bool:
        left = self.epoch_samples - epoch_samples
        return left < self.schedule.sizes[stage] if self.drop_last else left <= 0

    def runs(self) -> Iterator[StepRun]:
        """Yield all steps in order, without an end: the last run has infinitely many epochs."""
        at = StepPosition(0, 0, 0, 0)
        total, schedule = self.epoch_samples, self.schedule
        while True:
            stage = schedule.stage_at(at.samples)
            size, end = schedule.sizes[stage], schedule.end_of(stage)
            per_epoch = epoch_steps(total, size, self.drop_last)
            taken = min(per_epoch * size, total)
            epochs = math.inf if end == math.inf else (int(end) - 1 - at.samples) // taken if taken else 0
            if at.epoch_samples == 0 and epochs > 0:
                yield StepRun(at, size, per_epoch, epochs)
                if epochs == math.inf:
                    return
                count = int(epochs)
                samples = at.samples + count * taken
                at = StepPosition(at.step + count * per_epoch, at.epoch + count, 0, samples)
                continue
            left = total - at.epoch_samples
            steps = epoch_steps(left, size, self.drop_last)
            if end != math.inf:
                steps = min(steps, -(-(int(end) - at.samples) // size))
            yield StepRun(at, size, steps, 0)
            at = self._advanced(at, steps, min(steps * size, left))

    def _advanced(self, at: StepPosition, steps: int, samples: int) -> StepPosition:
        epoch_samples, samples = at.epoch_samples + samples, at.samples + samples
        if self._ends(epoch_samples, self.schedule.stage_at(samples)):
            return StepPosition(at.step + steps, at.epoch + 1, 0, samples)
        return StepPosition(at.step + steps, at.epoch, epoch_samples, samples)

    def after(self, steps: float = math.inf, epochs: float = math.inf) -> StepPosition:
        """Return the position after `steps` steps or `epochs` whole epochs, whichever comes first."""
        for run in self.runs():
            at = run.start
            if at.epoch >= epochs or at.step >= steps:
                return at
            per_epoch = int(run.steps)
            if not run.epochs:
                if steps < at.step + per_epoch:
                    return self._within(run, 0, int(steps) - at.step)
                continue
            count = min(run.epochs, epochs - at.epoch)
            if steps < at.step + count * per_epoch:
                return self._within(run, *divmod(int(steps) - at.step, per_epoch))
            if count < run.epochs:
                return self._within(run, int(count), 0)
        raise AssertionError("the last run has no end")

    def end(self, trainer: "TrainerConfig") -> StepPosition:
        """Return the end of a training: `epochs` or `max_steps`, whichever comes first; 1 epoch if neither is set."""
        epochs = trainer.epochs or (1 if trainer.max_steps is None else math.inf)
        return self.after(trainer.max_steps or math.inf, epochs)

    def _within(self, run: StepRun, epochs: int, steps: int) -> StepPosition:
        """Return the position after `epochs` whole epochs of a run and `steps` further full steps of it."""
        at, per_epoch = run.start, int(run.steps)
        samples = steps * run.batch_size
        whole = epochs * min(per_epoch * run.batch_size, self.epoch_samples)
        return StepPosition(
            at.step + epochs * per_epoch + steps,
            at.epoch + epochs,
            at.epoch_samples + samples,
            at.samples + whole + samples,
        )

    def first_steps(self) -> list[StepPosition]:
        """Return the position of the first step of each stage that has a step."""
        found: dict[int, StepPosition] = {}
        for run in self.runs():
            found.setdefault(self.schedule.stage_at(run.start.samples), run.start)
        return list(found.values())

    @property
    def first_size_epoch(self) -> int:
        """Number of steps of an epoch with the batch size of the first stage."""
        return epoch_steps(self.epoch_samples, self.schedule.sizes[0], self.drop_last)

    def first_size_steps(self, epoch: int, epoch_samples: int) -> int:
        """Return the number of full steps to a position with the batch size of the first stage.

        Learning-rate schedules follow this number: after equally many samples, a larger batch has the same factor as a
        smaller one.
        """
        return epoch * self.first_size_epoch + min(epoch_samples // self.schedule.sizes[0], self.first_size_epoch)

    def first_size_total(self, trainer: "TrainerConfig") -> int:
        """Return the steps of the whole training with the batch size of the first stage, at least 1.

        A last step that is not full is included.
        """
        end = self.end(trainer)
        last = -(-end.epoch_samples // self.schedule.sizes[0])
        return max(1, end.epoch * self.first_size_epoch + min(last, self.first_size_epoch))

    def epochs(self, position: StepPosition) -> float:
        """Return the number of passes over the training set, as a fraction."""
        return position.epoch + position.epoch_samples / self.epoch_samples
