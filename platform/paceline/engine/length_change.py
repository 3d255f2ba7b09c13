"""Effect on the learning rates when a run is resumed with another length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.engine.plan import TrainPlan
from paceline.engine.state import Position
from paceline.lr_schedulers.base import LRSchedulerConfig

KEY = "plan"
"""Key in `state.json` of the plan that the run was trained by."""
LOOKED_AT = 1000
"""Approximate number of optimizer steps at which the two schedules of a long run are compared."""


@dataclass(frozen=True)
class LengthChange:
    """The old and the new length of a run, and whether its schedule is the same for the steps done."""

    step: int
    """Optimizer steps done."""
    total_steps_before: int
    total_steps: int
    is_same_schedule: bool
    """True if a run of the new length from the start would have had the same learning rates so far."""
    lr_before: float
    """Learning rate of the last step done, for a parameter group with ratio 1."""
    lr: float
    """Learning rate of the next step."""
    was_stopped_early: bool = False
    """True if a callback had ended the run, and the user extends it."""

    def text(self, schedule: str) -> str:
        """Return the change as a line for the user.

        Args:
            schedule: name of the schedule.
        """
        before, after, done = f"{self.total_steps_before:,}", f"{self.total_steps:,}", f"{self.step:,}"
        length = f"{before} -> {after} optimizer steps" if before != after else f"{after} optimizer steps"
        if self.was_stopped_early:
            length = f"{length}, from step {done}, where a callback had stopped the run"
        if not self.is_same_schedule:
            return (
                f"{length}; {schedule} over {after} steps would have had other learning rates for the {done} steps "
                "done, so the result differs from that of a run of this length from the start; "
                f"lr {self.lr_before:.4g} -> {self.lr:.4g}"
            )
        if self.was_stopped_early:
            return f"{length}; the learning rate ({schedule}) continues as if it had not"
        return f"{length}; {schedule} has the same learning rates, so the result is that of a run of this length"


def plan_values(plan: TrainPlan) -> dict[str, Any]:
    """Return the plan as JSON values for a checkpoint."""
    lengths = {"lr_steps": plan.lr_steps, "lr_steps_per_epoch": plan.lr_steps_per_epoch}
    return {KEY: {"total_steps": plan.total_steps, "steps_per_epoch": plan.steps_per_epoch, **lengths}}


def length_change(
    config: ExperimentConfig,
    plan: TrainPlan,
    values: Mapping[str, Any],
    lr_at: Callable[[int], float],
    warmup_steps: int,
    was_stopped_early: bool = False,
) -> LengthChange | None:
    """Compare the plan with the one that a checkpoint was trained by; None if there is nothing to report.

    Args:
        values: values of the checkpoint.
        lr_at: function from the step to the learning rate that the schedule's factor multiplies.
    """
    before = values.get(KEY)
    if before is None or (before["total_steps"] == plan.total_steps and not was_stopped_early):
        return None
    position = Position(**values["position"])
    step, done = position.step, plan.lr_step(position)
    scheduler = LRSchedulerConfig.of(config.lr_scheduler)
    # a checkpoint of an earlier version has only the steps
    steps_before = before.get("lr_steps", before["total_steps"])
    per_epoch_before = before.get("lr_steps_per_epoch", before["steps_per_epoch"])
    old = scheduler.build(steps_before, warmup_steps, per_epoch_before)
    new = scheduler.build(plan.lr_steps, warmup_steps, plan.lr_steps_per_epoch)
    stride = max(1, done // LOOKED_AT)
    steps = {*range(0, done, stride), *range(max(0, done - 2), done)}
    return LengthChange(
        step,
        before["total_steps"],
        plan.total_steps,
        all(old(each) == new(each) for each in steps),
        lr_at(max(step - 1, 0)) * old(max(done - 1, 0)),
        lr_at(step) * new(done),
        was_stopped_early,
    )
