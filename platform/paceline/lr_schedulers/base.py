"""Base class of the schedule configs: a factor of the peak learning rate for each optimizer step.

A schedule is a pure function of the step, so a resumed run needs no state for it.
"""

from collections.abc import Callable

from paceline.config.lr_scheduler import LRSchedulerSection

Schedule = Callable[[int], float]
"""Factor of the peak learning rate at an optimizer step, counted from 0."""


class LRSchedulerConfig(LRSchedulerSection):
    """A schedule after an optional linear warmup."""

    def build(self, total_steps: int, warmup_steps: int, steps_per_epoch: float) -> Schedule:
        """Return the factor at each step: (step + 1) / warmup during warmup, then that of `after_warmup`."""

        def factor(step: int) -> float:
            if step < warmup_steps:
                return (step + 1) / warmup_steps
            return self.after_warmup(step - warmup_steps, max(total_steps - warmup_steps, 1), steps_per_epoch)

        return factor

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """The factor `step` steps after the end of the warmup, of `total_steps` that follow it."""
        raise NotImplementedError
