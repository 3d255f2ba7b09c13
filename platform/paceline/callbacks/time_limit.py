"""Finish the run after some time, such as before a cluster's time limit for jobs."""

from collections.abc import Mapping
from time import monotonic
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback, Control, TrainContext


class TimeLimit(Callback):
    """Finishes the run `minutes` after its start, the time of earlier attempts included. Rank 0's clock counts."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self.stop_reason = f"the time limit of {minutes:g} minutes was reached"
        self._spent_before = 0.0
        self._start = monotonic()

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start the clock."""
        self._start = monotonic()

    def on_step_end(self, ctx: TrainContext) -> Control:
        """Finish the run, if its time is over."""
        return Control.STOP if ctx.is_main and self._spent() >= self._seconds else Control.CONTINUE

    def state_dict(self) -> Mapping[str, Any]:
        """The seconds spent so far."""
        return {"seconds": self._spent()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the time that is left."""
        self._spent_before, self._start = float(state["seconds"]), monotonic()

    def _spent(self) -> float:
        return self._spent_before + monotonic() - self._start


class TimeLimitConfig(CallbackConfig):
    """Finish the run after some time. The final weights are evaluated and saved."""

    name: Literal["time_limit"]
    """Selects this callback."""
    minutes: Annotated[float, Field(ge=0.01, le=1e6)]
    """Minutes of training, 0.01 to 10^6, evaluations and checkpoints included."""

    def build(self) -> Callback:
        """The callback."""
        return TimeLimit(self.minutes)
