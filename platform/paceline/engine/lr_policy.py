"""Learning rate of each optimizer step."""

from typing import TYPE_CHECKING

from torch.optim import Optimizer

from paceline.errors import UnusableCode
from paceline.lr_schedulers.base import Schedule

if TYPE_CHECKING:
    from paceline.engine.batch_stages import BatchStages
    from paceline.engine.forward_backward import StepStats


class LRPolicy:
    """The peak learning rate times the schedule. Each parameter group keeps its ratio to it.

    Args:
        optimizer: just built; its groups' learning rates set the ratios.
        peak_lr: the learning rate that the optimizer was built with, above 0.
        schedule: factor of the peak at each step.
        stages: give the peak where the batch size follows a schedule.
    """

    def __init__(
        self, optimizer: Optimizer, peak_lr: float, schedule: Schedule, stages: "BatchStages | None" = None
    ) -> None:
        self.peak_lr = peak_lr
        self.schedule = schedule
        self.current = peak_lr
        """The learning rate of the newest step, for a group with ratio 1."""
        self.stages = stages
        self._global_batch_size = 0
        self._optimizer = optimizer
        self._ratios = [float(group["lr"]) / peak_lr for group in optimizer.param_groups]

    def lr(self, step: int, stats: "StepStats") -> float:
        """The learning rate of an optimizer step. Every rank must call it.

        Args:
            step: counted from 0.
            stats: of the step's forward and backward passes, which are done.
        """
        if self.stages is None:
            return self.peak_lr * self.schedule(step)
        return self.stages.peak_lr * self.schedule(self.stages.lr_step)

    def apply(self, step: int, stats: "StepStats") -> None:
        """Set the learning rate of every parameter group. Every rank must call it."""
        self.current = self.lr(step, stats)
        if self.stages is not None:
            self._global_batch_size = self.stages.global_batch_size
        groups = self._optimizer.param_groups
        if len(groups) != len(self._ratios):
            raise UnusableCode(
                f"the optimizer has {len(groups)} parameter groups, and had {len(self._ratios)} when the training "
                "started: groups cannot be added or removed in training. Set them with optimizer.param_groups, or "
                "build them in an optimizer of your own",
                "parameter-groups-changed",
                before=len(self._ratios),
                now=len(groups),
            )
        for group, ratio in zip(groups, self._ratios, strict=True):
            group["lr"] = self.current * ratio

    def metrics(self) -> dict[str, float]:
        """Metrics for the log."""
        of_stage = {} if self.stages is None else {"global_batch_size": float(self._global_batch_size)}
        return {"lr": float(self.current), **of_stage}
