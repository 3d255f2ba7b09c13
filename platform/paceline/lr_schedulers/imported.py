"""The user's own schedule, by import path."""

import math
from typing import Any

from paceline.config.imports import Called, Imported
from paceline.errors import UnusableCode
from paceline.lr_schedulers.base import LRSchedulerConfig, Schedule


class CalledLRSchedulerConfig(Called, LRSchedulerConfig):
    """A callable `factor(step, total_steps, **args) -> float`: the factor of the peak learning rate.

    Both numbers count from the end of the warmup. The factor must depend on nothing else, since a resumed run asks
    only for the steps that are left.
    """

    def build(self, total_steps: int, warmup_steps: int, steps_per_epoch: float) -> Schedule:
        """The warmup, then what the user's code returns.

        Raises:
            ConfigError: it cannot be imported.
        """
        self.load()
        return super().build(total_steps, warmup_steps, steps_per_epoch)

    def after_warmup(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Call the user's code.

        Raises:
            UnusableCode: it returned no finite number, or one below 0.
        """
        value = self.call(step, total_steps)
        factor = _number(value)
        if factor is None or not math.isfinite(factor) or factor < 0:
            raise UnusableCode(
                f"{self.chosen('lr_scheduler')} returned {value!r} for step {step} of {total_steps} after the warmup. "
                "Return a finite number of at least 0",
                "bad-lr-factor",
                step=step,
                total_steps=total_steps,
            )
        return factor


class ImportedLRSchedulerConfig(Imported, CalledLRSchedulerConfig):
    """`path` leads to a callable `factor(step, total_steps, **args) -> float`: the factor of the peak learning rate,
    where both numbers count from the end of the warmup."""


def _number(value: Any) -> float | None:
    if isinstance(value, bool | str):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
