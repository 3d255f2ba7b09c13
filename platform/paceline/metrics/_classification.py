"""Metrics over predicted and true classes."""

from collections.abc import Callable
from typing import Any

import torch

from paceline.errors import UnusableCode


class _Counts:
    """Right, predicted and true numbers of each class, which are summed over the workers."""

    def __init__(self, num_classes: int | None = None, ignore_index: int | None = None) -> None:
        """Args:
        num_classes: the number of classes; None follows from the largest class that is met.
        ignore_index: targets of this value do not count; None counts all.
        """
        self._num_classes = num_classes
        self._ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._counts = torch.zeros(3, self._num_classes or 0, dtype=torch.int64)

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch.

        Args:
            predictions: class indices of any shape, or scores of shape [n, classes, ...].
            targets: class indices of the shape of the indices.

        Raises:
            UnusableCode: these are not classes.
        """
        if predictions.ndim == targets.ndim + 1:
            predictions = predictions.argmax(dim=1)
        if predictions.shape != targets.shape or predictions.is_floating_point() or targets.is_floating_point():
            raise UnusableCode(
                f"the metric needs class indices, but got {predictions.dtype} of shape {list(predictions.shape)} and "
                f"{targets.dtype} of shape {list(targets.shape)}",
                "not-classes",
            )
        predictions, targets = predictions.flatten(), targets.flatten()
        if self._ignore_index is not None:
            counted = targets != self._ignore_index
            predictions, targets = predictions[counted], targets[counted]
        if not targets.numel():
            return
        classes = int(max(int(predictions.max()), int(targets.max()))) + 1
        right = targets[predictions == targets]
        self._counts = _added(
            self._counts,
            torch.stack([torch.bincount(each, minlength=classes) for each in (right, predictions, targets)]),
        )

    def synchronize(self, gather: Callable[[Any], list[Any]]) -> None:
        """Take in the counts of all workers.

        Args:
            gather: gives the values of all workers.
        """
        for index, counts in enumerate(gather(self._counts.cpu())):
            self._counts = counts if index == 0 else _added(self._counts, counts)


def _added(counts: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Sum of two tables of shape [3, classes], which may differ in their number of classes."""
    classes = max(counts.shape[1], more.shape[1])
    padded = [torch.nn.functional.pad(each, (0, classes - each.shape[1])) for each in (counts.to(more.device), more)]
    return padded[0] + padded[1]


class F1(_Counts):
    """Macro F1 score: the mean over the classes that occur of 2 x right / (predicted + true)."""

    def compute(self) -> float:
        """The score, 0 to 1; NaN without a sample."""
        right, predicted, true = self._counts.double()
        occurs = predicted + true > 0
        return float((2 * right[occurs] / (predicted + true)[occurs]).mean())


class MeanIoU(_Counts):
    """Mean over the classes that occur of intersection over union (Jaccard index)."""

    def compute(self) -> float:
        """The mean, 0 to 1; NaN without a sample."""
        right, predicted, true = self._counts.double()
        union = predicted + true - right
        return float((right[union > 0] / union[union > 0]).mean())
