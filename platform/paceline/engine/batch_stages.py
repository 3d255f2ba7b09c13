"""The stage of `data.batch_size_schedule` that training is in: its global batch size and its learning rate."""

from collections.abc import Sequence

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.engine.state import TrainState


class BatchStages:
    """A pure function of the position, so that a resumed run continues in the same stage.

    Args:
        peak_lrs: peak learning rate of each stage, scaled by `optimizer.lr_scaling` for the stage's batch.
    """

    def __init__(self, scheduled: ScheduledSteps, state: TrainState, peak_lrs: Sequence[float]) -> None:
        self._scheduled = scheduled
        self._state = state
        self._peak_lrs = peak_lrs

    @property
    def global_batch_size(self) -> int:
        """Global batch size of the next step, in samples."""
        schedule = self._scheduled.schedule
        return schedule.sizes[schedule.stage_at(self._state.position.samples)]

    @property
    def lr_step(self) -> int:
        """Step of the learning-rate schedule for the next optimizer step: see `ScheduledSteps.first_size_steps`."""
        position = self._state.position
        return self._scheduled.first_size_steps(position.epoch, position.epoch_samples)

    @property
    def peak_lr(self) -> float:
        """Learning rate of the next step, before the factor of `lr_scheduler`."""
        return self._peak_lrs[self._scheduled.schedule.stage_at(self._state.position.samples)]

    def peak_lr_at(self, step: int) -> float:
        """Return the learning rate of any step (counted from 0), before the factor of `lr_scheduler`."""
        return self._peak_lrs[self._scheduled.schedule.stage_at(self._scheduled.after(step).samples)]
