"""Cosine decay."""

import math
from typing import Annotated, Literal

from pydantic import Field

from paceline.lr_schedulers.base import LRSchedulerConfig


class CosineConfig(LRSchedulerConfig):
    """From the peak down to `end_factor` of it along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    name: Literal["cosine"]
    """Selects this schedule."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak learning rate at the end of training, in [0, 1]."""

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """1 at the end of the warmup, `end_factor` at the end of training."""
        progress = min(step / total_steps, 1.0)
        return self.end_factor + (1.0 - self.end_factor) * 0.5 * (1.0 + math.cos(math.pi * progress))
