"""Plan of the events of a training by optimizer step: logging, evaluation, checkpoints, the end."""

from dataclasses import dataclass
from functools import cached_property

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.config.sections import CheckpointConfig, TrainerConfig
from paceline.config.steps import training_steps
from paceline.engine.state import Position


@dataclass(frozen=True)
class TrainPlan:
    """Pure functions of the position, so that a resumed run logs, evaluates and saves at the same steps."""

    trainer: TrainerConfig
    checkpoint: CheckpointConfig
    steps_per_epoch: int
    scheduled: ScheduledSteps | None = None
    """Steps of a schedule of the batch size; None without one."""

    @cached_property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole training."""
        if self.scheduled is not None:
            return self.scheduled.end(self.trainer).step
        return training_steps(self.trainer, self.steps_per_epoch)

    @property
    def lr_steps(self) -> int:
        """Length of the training for the learning-rate schedule, in steps; with a batch-size schedule, in steps of the
        first stage's size."""
        return self.total_steps if self.scheduled is None else self.scheduled.first_size_total(self.trainer)

    @property
    def lr_steps_per_epoch(self) -> int:
        """Length of an epoch for the learning-rate schedule, in the same unit as `lr_steps`."""
        return self.steps_per_epoch if self.scheduled is None else self.scheduled.first_size_epoch

    def lr_step(self, position: Position) -> int:
        """Return the step of the learning-rate schedule that follows a position, counted from 0."""
        if self.scheduled is None:
            return position.step
        return self.scheduled.first_size_steps(position.epoch, position.epoch_samples)

    def is_over(self, position: Position) -> bool:
        """Return True if training has reached its end."""
        return position.step >= self.total_steps

    def is_quiet(self, position: Position) -> bool:
        """Return True after a step with nothing to log, evaluate or save, which ends neither an epoch nor training."""
        step = position.step
        for every in self._intervals:
            if step % every == 0:
                return False
        return position.epoch_samples > 0 and step < self.total_steps

    @cached_property
    def _intervals(self) -> list[int]:
        trainer, checkpoint = self.trainer, self.checkpoint
        every = (trainer.log_every_n_steps, trainer.evaluate_every_n_steps, checkpoint.every_n_steps)
        return [steps for steps in every if steps is not None]

    def logs(self, position: Position) -> bool:
        """Return True if the training metrics are read after the step that led to this position."""
        return position.step % self.trainer.log_every_n_steps == 0 or self.is_over(position)

    def logs_next(self, position: Position) -> bool:
        """Return True if the training metrics are read after the next step."""
        step = position.step + 1
        return step % self.trainer.log_every_n_steps == 0 or step >= self.total_steps

    def evaluates(self, position: Position) -> bool:
        """Return True if the validation set is evaluated after the step that led to this position."""
        every, every_n_steps = self.trainer.evaluate_every_n_epochs, self.trainer.evaluate_every_n_steps
        if every_n_steps is not None and position.step % every_n_steps == 0:
            return True
        return self.is_over(position) or (every > 0 and self._ended_epochs(position, every))

    def saves(self, position: Position) -> bool:
        """Return True if a checkpoint is saved after the step that led to this position."""
        if self.is_over(position):
            return True
        if self.checkpoint.every_n_steps is not None:
            return position.step % self.checkpoint.every_n_steps == 0
        return self._ended_epochs(position, self.checkpoint.every_n_epochs or 1)

    def _ended_epochs(self, position: Position, every: int) -> bool:
        return position.epoch_samples == 0 and position.epoch > 0 and position.epoch % every == 0
