"""A constant learning rate."""

from typing import Literal

from paceline.lr_schedulers.base import LRSchedulerConfig


class ConstantConfig(LRSchedulerConfig):
    """The peak learning rate from the end of the warmup on."""

    name: Literal["constant"]
    """Selects this schedule."""

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Always 1."""
        return 1.0
