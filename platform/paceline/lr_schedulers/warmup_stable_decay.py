"""Warmup, a constant learning rate, and a short decay at the end."""

import math
from typing import Annotated, Literal

from pydantic import Field

from paceline.lr_schedulers.base import LRSchedulerConfig, Schedule


class WarmupStableDecayConfig(LRSchedulerConfig):
    """The peak learning rate after the warmup, then a decay over the last steps of training (Hu et al. 2024,
    arXiv:2404.06395; Hägele et al. 2024, arXiv:2405.18392).

    A run can be extended from any checkpoint before the decay.
    """

    name: Literal["warmup_stable_decay"]
    """Selects this schedule."""
    decay_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of all optimizer steps, counted from the end, in which the learning rate decays, in [0, 1]. A longer warmup
    shortens the decay. 0 disables."""
    decay_shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """Form of the decay, at the share p of its steps: `linear` is 1 - p, `sqrt` is 1 - sqrt(p), which Hägele et al.
    found best, `cosine` is half a cosine."""
    final_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak learning rate at the end of training, in [0, 1]."""

    def build(self, total_steps: int, warmup_steps: int, steps_per_epoch: float) -> Schedule:
        """The factor at each step: warmup, 1, and the decay to `final_factor`."""
        warmup = super().build(total_steps, warmup_steps, steps_per_epoch)
        begin = max(warmup_steps, total_steps - round(self.decay_fraction * total_steps))

        def factor(step: int) -> float:
            if step < begin or begin >= total_steps:
                return warmup(step)
            return self._decayed(min((step - begin) / (total_steps - begin), 1.0))

        return factor

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """1, as long as the decay has not begun."""
        return 1.0

    def _decayed(self, progress: float) -> float:
        left = {
            "linear": 1.0 - progress,
            "sqrt": 1.0 - math.sqrt(progress),
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self.decay_shape]
        return self.final_factor + (1.0 - self.final_factor) * left
