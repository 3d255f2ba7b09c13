"""Metrics over predicted and true numbers."""

from collections.abc import Callable
from typing import Any

import torch

from paceline.errors import UnusableCode


class _Moments:
    """Count, mean and centred sums, which are merged over batches and workers (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._parts = torch.zeros(5, dtype=torch.float64)
        """Count, mean of the targets, their centred sum of squares, sums of squared and of absolute errors."""

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        """Take in a batch.

        Args:
            predictions: numbers of any shape.
            targets: numbers of the same shape.

        Raises:
            UnusableCode: the shapes differ.
        """
        if predictions.shape != targets.shape:
            shapes = f"{list(predictions.shape)} and {list(targets.shape)}"
            raise UnusableCode(f"the metric needs predictions of the targets' shape, but got {shapes}", "shapes-differ")
        true, errors = targets.double(), predictions.double() - targets.double()
        mean = true.mean() if true.numel() else torch.zeros((), dtype=torch.float64)
        count = torch.tensor(float(true.numel()))
        new = [count, mean, (true - mean).square().sum(), errors.square().sum(), errors.abs().sum()]
        self._parts = _merged(self._parts, torch.stack([each.to(true.device, torch.float64) for each in new]))

    def synchronize(self, gather: Callable[[Any], list[Any]]) -> None:
        """Take in the sums of all workers.

        Args:
            gather: gives the values of all workers.
        """
        for index, parts in enumerate(gather(self._parts.cpu())):
            self._parts = parts if index == 0 else _merged(self._parts, parts)


def _merged(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    first = first.to(second.device)
    total = first[0] + second[0]
    weight = torch.where(total > 0, second[0] / total, 0.0)
    difference = second[1] - first[1]
    centred = first[2] + second[2] + difference.square() * first[0] * weight
    return torch.stack([total, first[1] + difference * weight, centred, first[3] + second[3], first[4] + second[4]])


class R2(_Moments):
    """Coefficient of determination over all numbers: 1 - squared errors / variation of the targets."""

    def compute(self) -> float:
        """The coefficient, at most 1; NaN where the targets are all equal."""
        return float(1 - self._parts[3] / self._parts[2]) if self._parts[2] > 0 else float("nan")


class MeanAbsoluteError(_Moments):
    """Mean absolute error."""

    def compute(self) -> float:
        """The mean; NaN without a sample."""
        return float(self._parts[4] / self._parts[0])


class RootMeanSquaredError(_Moments):
    """Root of the mean squared error."""

    def compute(self) -> float:
        """The root; NaN without a sample."""
        return float((self._parts[3] / self._parts[0]).sqrt())
