"""Running metrics that stay on the device until they are read, so that no step waits for the device."""

from collections.abc import Callable, Mapping, Sequence

import torch

from paceline.engine.dist_context import DistContext
from paceline.tasks.base import TaskOutput

MAX_KEPT = 1000
"""Losses that are kept on the device before they are added up, however rarely they are read."""


class RunningLoss:
    """Sum of losses and weights since the last reading. Holds detached numbers only, never a graph."""

    def __init__(self, ranks: DistContext) -> None:
        self._ranks = ranks
        self._losses: list[torch.Tensor] = []
        self._weights: list[float | torch.Tensor] = []
        """One for each of the losses."""
        self._begin = 0
        """Index of the first loss of the current step."""
        self._totals = [0.0, 0.0]
        """Losses and weights, as far as they have been read from the device."""
        self._reading: Callable[[], list[float]] | None = None
        """Ends the exchange that `begin_reading` began."""

    def add(self, output: TaskOutput) -> None:
        """Take in one micro batch of the current step."""
        weight = output.weight
        self._losses.append(output.loss_sum.detach())
        self._weights.append(weight.detach() if isinstance(weight, torch.Tensor) else weight)

    def end_step(self, left_out: torch.Tensor | None = None) -> None:
        """End an optimizer step. Of one that fp16 left out (not 0), losses that are not finite do not count."""
        losses, weights = self._losses, self._weights
        if left_out is not None:
            for index in range(self._begin, len(losses)):
                counts = (left_out == 0) | torch.isfinite(losses[index])
                losses[index], weights[index] = torch.where(counts, losses[index], 0), counts * weights[index]
        self._begin = len(losses)
        if self._begin >= MAX_KEPT:
            self._fold()

    def read(self) -> float:
        """The mean loss over all ranks since the last reading; starts again. Every rank must call it."""
        return self.read_with(tuple)[0]

    def read_with(self, beside: Callable[[], Sequence[float]]) -> tuple[float, list[float]]:
        """The same, in one exchange with other numbers; ends the exchange that has begun, if one has.

        Args:
            beside: gives the numbers, as many on all ranks. Called when this rank's device has
                been waited for.

        Returns:
            The loss, and the sums of the numbers over all ranks.
        """
        if self._reading is None:
            self.begin_reading(beside)
        assert self._reading is not None
        loss, weight, *sums = self._reading()
        self._reading = None
        self._totals = [0.0, 0.0]
        return (loss / weight if weight else float("nan")), sums

    def begin_reading(self, beside: Callable[[], Sequence[float]]) -> None:
        """Begin the exchange of `read_with`. All losses that it is to include must have been added before."""
        self._fold()
        self._reading = self._ranks.begin_sum([*self._totals, *beside()])

    def state_dict(self) -> dict[str, list[list[float]]]:
        """Each rank's totals, for a checkpoint between two readings. Every rank must call it."""
        self._fold()
        return {"totals": self._ranks.gather_numbers(self._totals)}

    def load_state_dict(self, state: Mapping[str, list[list[float]]]) -> None:
        """Continue from saved totals; with another world size rank 0 takes them all."""
        totals = state["totals"]
        if len(totals) == self._ranks.world_size:
            self._totals = list(totals[self._ranks.rank])
        elif self._ranks.is_first:
            self._totals = [sum(column) for column in zip(*totals, strict=True)]

    def _fold(self) -> None:
        # one number after the other, so that a run that was resumed in between gets the same sum to the last bit
        for loss in _numbers(self._losses):
            self._totals[0] += loss
        for weight in _numbers(self._weights):
            self._totals[1] += weight
        self._losses, self._weights, self._begin = [], [], 0


def _numbers(values: Sequence[float | torch.Tensor]) -> list[float]:
    """Read scalars, all tensors among them at once."""
    on_device = [each for each in values if isinstance(each, torch.Tensor)]
    if not on_device:
        return list(values)  # type: ignore[arg-type]
    read = iter(torch.stack(on_device).tolist())
    return [next(read) if isinstance(each, torch.Tensor) else each for each in values]
