"""Linear decay."""

from typing import Annotated, Literal

from pydantic import Field

from paceline.lr_schedulers.base import LRSchedulerConfig


class LinearConfig(LRSchedulerConfig):
    """From the peak down to `end_factor` of it in a straight line."""

    name: Literal["linear"]
    """Selects this schedule."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak learning rate at the end of training, in [0, 1]."""

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """1 at the end of the warmup, `end_factor` at the end of training."""
        return 1.0 - (1.0 - self.end_factor) * min(step / total_steps, 1.0)
