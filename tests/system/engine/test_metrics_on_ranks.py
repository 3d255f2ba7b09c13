"""Metrics over two ranks with uneven shards are those of the whole validation set."""

from typing import Any

import pytest
import torch

from paceline.engine.dist_context import DistContext
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.toys import Points, fit, toy_config


class Plain:
    """A metric that knows nothing of ranks."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.pairs += zip(predictions.tolist(), targets.tolist(), strict=True)

    def compute(self) -> float:
        from sklearn import metrics as reference

        predicted, true = zip(*self.pairs, strict=True)
        return float(reference.matthews_corrcoef(true, predicted))

    def reset(self) -> None:
        self.pairs = []


class Fixed(Task):
    """Predicts from the sample's id alone."""

    def forward(self, batch: Any) -> TaskOutput:
        features, _, ids = batch
        loss = self.model(features.to(next(self.parameters()).dtype)).square().sum()
        return TaskOutput(loss, len(ids), predictions=ids * 7 % 5, targets=ids % 5)


class Numbers(Fixed):
    """Predicts numbers."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        output.predictions, output.targets = output.predictions / 3, output.targets.double()
        return output


def uneven() -> Any:
    """13 samples are 7 on one rank and 6 on the other, in micro-batches of 4."""
    return Points(32), Points(13)


TORCHMETRICS = "torchmetrics.classification:MulticlassF1Score"
CLASS_METRICS = [
    {"name": "f1"},
    {"name": "iou"},
    {"name": "theirs", "path": TORCHMETRICS, "args": {"num_classes": 5, "average": "macro"}},
    {"name": "mcc", "path": Plain},
]


def measured(ranks: DistContext) -> tuple[dict[str, float], dict[str, float]]:
    found = []
    for task, metrics in ((Fixed, CLASS_METRICS), (Numbers, [{"name": "r2"}])):
        config = toy_config(
            task__path=task, data__path=uneven, data__global_batch_size=8, data__micro_batch_size=4,
            trainer__epochs=1, metrics=metrics, scaling__num_workers=ranks.world_size,
        )  # fmt: skip
        found.append(fit(config, ranks)[1].metrics)
    return found[0], found[1]


def test_metrics_are_those_of_the_whole_set() -> None:
    from sklearn import metrics as reference

    ids = torch.arange(13)
    predicted, true = ids * 7 % 5, ids % 5
    f1 = reference.f1_score(true, predicted, average="macro")
    for classes, numbers in run_ranks(measured, 2):
        assert classes["val/f1"] == pytest.approx(f1, abs=1e-9)
        assert classes["val/theirs"] == pytest.approx(f1, abs=1e-6)
        assert classes["val/iou"] == pytest.approx(reference.jaccard_score(true, predicted, average="macro"), abs=1e-9)
        assert classes["val/mcc"] == pytest.approx(reference.matthews_corrcoef(true, predicted), abs=1e-9)
        assert numbers["val/r2"] == pytest.approx(reference.r2_score(true, predicted / 3), abs=1e-6)
