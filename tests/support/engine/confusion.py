"""A task whose metrics are made from sums: a confusion matrix, and the F1 score of class 0."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from paceline.tasks.base import TaskOutput
from support.toys import CLASSES, PointsTask


class Confusion(PointsTask):
    """Its matrix has true classes as rows."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        if self.training:
            return output
        predictions, targets = self.model(batch[0]).argmax(dim=1), batch[1]
        matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
        matrix.index_put_((targets, predictions), torch.ones_like(targets), accumulate=True)
        return replace(output, metrics={**output.metrics, "matrix": matrix})

    def compute(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        plain = {name: each for name, each in sums.items() if name != "matrix"}
        return {**super().compute(plain), "f1": f1(sums["matrix"])}


def f1(matrix: torch.Tensor) -> float:
    """The score of class 0, from a matrix of any number format."""
    return float(2 * matrix[0, 0] / (matrix[0].sum() + matrix[:, 0].sum()).clamp(min=1))
