"""Running metrics that stay on the device until they are read, so that no step waits for the device."""

import torch

from paceline.engine.ranks import Ranks
from paceline.tasks.base import TaskOutput


class RunningLoss:
    """Sum of losses and weights since the last reading. Holds detached numbers only, never a graph."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        # float64, so that the mean does not depend on how many steps or ranks it is taken over
        self._totals = torch.zeros(2, dtype=torch.float64, device=ranks.device)
        self._loss, self._weight = self._totals[0], self._totals[1]
        self._samples = 0

    def add(self, output: TaskOutput) -> None:
        """Take in one micro batch."""
        self._loss += output.loss_sum.detach()
        if isinstance(output.weight, int):
            self._samples += output.weight
        else:
            self._weight += output.weight.detach()

    def local_totals(self) -> torch.Tensor:
        """This rank's sum of losses and of weights: float64, shape [2]."""
        if self._samples:
            self._weight += self._samples
            self._samples = 0
        return self._totals.clone()

    def read(self) -> float:
        """The mean loss over all ranks since the last reading; starts anew. Every rank must call it."""
        loss, weight = self._ranks.sum(self.local_totals()).tolist()
        self._totals.zero_()
        return float(loss / weight) if weight else float("nan")

    def state(self) -> list[list[float]]:
        """Each rank's totals, for a checkpoint between two readings. Every rank must call it."""
        return [totals.tolist() for totals in self._ranks.gather(self.local_totals())]

    def load_state(self, state: list[list[float]]) -> None:
        """Go on from saved totals; with another world size rank 0 takes them all."""
        self._samples = 0
        mine = torch.zeros_like(self._totals)
        if len(state) == self._ranks.world_size:
            mine = torch.tensor(state[self._ranks.rank], dtype=torch.float64)
        elif self._ranks.is_first:
            mine = torch.tensor(state, dtype=torch.float64).sum(dim=0)
        self._totals.copy_(mine)
