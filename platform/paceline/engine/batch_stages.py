"""The stage of `data.batch_size_schedule` that training is in: its global batch size and its learning rate."""

from collections.abc import Sequence

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.engine.state import TrainState


class BatchStages:
    """A pure function of the position, so that a resumed run continues in the same stage.

    Args:
        peak_lrs: of each stage, as `optimizer.lr_scaling` gives it for the stage's batch.
    """

    def __init__(self, scheduled: ScheduledSteps, state: TrainState, peak_lrs: Sequence[float]) -> None:
        self._scheduled = scheduled
        self._state = state
        self._peak_lrs = peak_lrs

    @property
    def global_batch_size(self) -> int:
        """Of the step that comes next."""
        schedule = self._scheduled.schedule
        return schedule.sizes[schedule.stage_at(self._state.position.samples)]

    @property
    def lr_step(self) -> int:
        """Of the learning-rate schedule, for the step that comes next: see `ScheduledSteps.first_size_steps`."""
        position = self._state.position
        return self._scheduled.first_size_steps(position.epoch, position.epoch_samples)

    @property
    def peak_lr(self) -> float:
        """Learning rate of the step that comes next, before the factor of `lr_scheduler`."""
        return self._peak_lrs[self._scheduled.schedule.stage_at(self._state.position.samples)]

    def peak_lr_at(self, step: int) -> float:
        """The same of any step, counted from 0."""
        return self._peak_lrs[self._scheduled.schedule.stage_at(self._scheduled.after(step).samples)]
