"""An estimate of a sample's weight, by which losses are divided before backward where weights are not samples.

The weight of a step is known only after its last micro-batch. Without an estimate the gradients of a language model are
larger by the context length until then, which overflows fp16.
"""

from collections.abc import Mapping
from math import isfinite, log2

from paceline.engine.dist_context import DistContext
from paceline.tasks.base import TaskOutput


class WeightScale:
    """Weight per sample, to the nearest power of two: found in the first step of a run, and kept from then on.

    Multiplication by a power of two is exact, so that the final gradient is equal to the bit whatever the estimate is,
    unless a number overflows or underflows. It is saved with checkpoints, since fp16 does underflow.
    """

    def __init__(self, ranks: DistContext) -> None:
        self._ranks = ranks
        self._value: float | None = None

    def value(self, output: TaskOutput, samples: int) -> float:
        """Weight per sample. In the first step every rank must call it.

        Args:
            output: of the first micro-batch, of `samples` samples; rank 0's counts.
        """
        if self._value is None:
            weight = float(output.weight) / samples
            nearest = 2.0 ** round(log2(weight)) if weight > 0 and isfinite(weight) else 1.0
            self._value = self._ranks.from_first([nearest])[0]
        return self._value

    def state_dict(self) -> dict[str, float | None]:
        """The estimate; None before the first step."""
        return {"value": self._value}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Restore the estimate."""
        self._value = state["value"]
