"""Save a checkpoint every few minutes, however long a step or an epoch takes."""

from time import monotonic
from typing import Annotated, Literal

from pydantic import Field

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback, Control, TrainContext


class CheckpointEveryMinutes(Callback):
    """Asks for a checkpoint once the last one of its own is `minutes` old. Rank 0's clock counts."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self._due = monotonic() + self._seconds

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start the clock."""
        self._due = monotonic() + self._seconds

    def on_step_end(self, ctx: TrainContext) -> Control:
        """Ask for a checkpoint, if one is due."""
        if not ctx.is_main or monotonic() < self._due:
            return Control.CONTINUE
        self._due = monotonic() + self._seconds
        return Control.SAVE


class CheckpointEveryMinutesConfig(CallbackConfig):
    """Save a checkpoint every few minutes, beside those of the section `checkpoint`."""

    name: Literal["checkpoint_every_minutes"]
    """Selects this callback."""
    minutes: Annotated[float, Field(ge=0.01, le=1e5)] = 30.0
    """Minutes between two checkpoints, 0.01 to 10^5."""

    def build(self) -> Callback:
        """The callback."""
        return CheckpointEveryMinutes(self.minutes)
