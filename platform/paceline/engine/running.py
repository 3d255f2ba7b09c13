"""Running metrics that stay on the device until they are read, so that no step waits for the device."""

from collections.abc import Callable, Mapping, Sequence

import torch

from paceline.engine.ranks import Ranks
from paceline.tasks.base import TaskOutput

MAX_KEPT = 1000
"""Losses that are kept on the device before they are added up, however rarely they are read."""


class RunningLoss:
    """Sum of losses and weights since the last reading. Holds detached numbers only, never a graph."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._step: list[tuple[torch.Tensor, float | torch.Tensor]] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[torch.Tensor] = []
        self._samples = 0.0
        self._totals = [0.0, 0.0]
        """Losses and weights, as far as they have been read from the device."""

    def add(self, output: TaskOutput) -> None:
        """Take in one micro batch of the step that is going on."""
        self._step.append((output.loss_sum.detach(), output.weight))

    def end_step(self, left_out: torch.Tensor | None = None) -> None:
        """End an optimizer step. Of one that fp16 left out (not 0), losses that are not finite do not count."""
        for loss, weight in self._step:
            if left_out is not None:
                counts = (left_out == 0) | torch.isfinite(loss)
                loss, weight = torch.where(counts, loss, 0), counts * weight
            self._losses.append(loss)
            if isinstance(weight, torch.Tensor):
                self._weights.append(weight.detach())
            else:
                self._samples += weight
        self._step = []
        if len(self._losses) >= MAX_KEPT:
            self._fold()

    def read(self) -> float:
        """The mean loss over all ranks since the last reading; starts anew. Every rank must call it."""
        return self.read_with(tuple)[0]

    def read_with(self, beside: Callable[[], Sequence[float]]) -> tuple[float, list[float]]:
        """The same, in one exchange with other numbers.

        Args:
            beside: gives the numbers, as many on all ranks. Called when this rank's device has
                been waited for.

        Returns:
            The loss, and the sums of the numbers over all ranks.
        """
        self._fold()
        loss, weight, *sums = self._ranks.sum_numbers([*self._totals, *beside()])
        self._totals = [0.0, 0.0]
        return (loss / weight if weight else float("nan")), sums

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
        for loss in torch.stack(self._losses).tolist() if self._losses else ():
            self._totals[0] += loss
        for weight in torch.stack(self._weights).tolist() if self._weights else ():
            self._totals[1] += weight
        self._totals[1] += self._samples
        self._losses, self._weights, self._samples = [], [], 0.0
