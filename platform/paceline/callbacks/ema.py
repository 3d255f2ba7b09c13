"""Exponential moving average of the weights."""

from typing import Annotated, Literal

from pydantic import Field

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback


class EMAConfig(CallbackConfig):
    """Average the weights over the steps, and evaluate with the average (Polyak and Juditsky 1992).

    After each optimizer step, average = decay x average + (1 - decay) x weights. Training continues with the weights
    themselves; evaluation, `load_model` and exported models use the average. Buffers, such as BatchNorm's statistics,
    are the model's own.
    """

    name: Literal["ema"]
    """Selects this callback."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Weight of the average so far at each step, in [0, 1)."""
    warmup: bool = True
    """Let the decay rise with the steps as min(decay, (1 + n) / (10 + n)), so that the first weights fade sooner."""

    def build(self) -> Callback:
        """The callback."""
        from paceline.callbacks._ema import EMA

        return EMA(self.decay, self.warmup)
