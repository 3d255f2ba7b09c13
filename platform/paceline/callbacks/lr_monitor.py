"""Log the learning rate of every parameter group."""

from typing import Annotated, Literal

from pydantic import Field

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback, TrainContext


class LRMonitor(Callback):
    """Logs `lr/<group>` every `every_n_steps` optimizer steps."""

    def __init__(self, every_n_steps: int) -> None:
        self._every_n_steps = every_n_steps

    def on_step_end(self, ctx: TrainContext) -> None:
        """Log, if a log is due."""
        if ctx.step % self._every_n_steps == 0:
            for index, group in enumerate(ctx.optimizer.param_groups):
                ctx.log(f"lr/{index}", float(group["lr"]))


class LRMonitorConfig(CallbackConfig):
    """Log the learning rate of every parameter group of the optimizer as `lr/0`, `lr/1` and so on."""

    name: Literal["lr_monitor"]
    """Selects this callback."""
    every_n_steps: Annotated[int, Field(ge=1, le=10**12)] = 10
    """Optimizer steps between two logs, 1 to 10^12."""

    def build(self) -> Callback:
        """The callback."""
        return LRMonitor(self.every_n_steps)
