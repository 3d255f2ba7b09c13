"""Metrics of a validation set, from sums over its batches."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.errors import UnusableCode
from support.engine.confusion import Confusion, f1
from support.toys import CLASSES, Points, PointsTask, fit, points, toy_config

VALIDATION = 31
"""Not a multiple of the micro batch."""


def with_metrics(make: Any) -> Any:
    """A task that gives other metrics."""

    class Changed(PointsTask):
        def forward(self, batch: Any) -> Any:
            return replace(super().forward(batch), metrics=make(batch))

    return Changed


def test_a_task_makes_metrics_of_the_sums_over_the_whole_set() -> None:
    config = toy_config(task__path=Confusion, data__path=lambda: points(96, VALIDATION))
    trainer, outcome, _ = fit(config)
    dataset, matrix = Points(VALIDATION), torch.zeros(CLASSES, CLASSES, dtype=torch.float64)
    for features, target, _ in (dataset[i] for i in range(VALIDATION)):
        matrix[target, trainer.state.task.model(features).argmax()] += 1
    assert outcome.metrics["val/f1"] == pytest.approx(f1(matrix), abs=1e-12)
    assert outcome.metrics["val/accuracy"] == pytest.approx(float(matrix.trace()) / VALIDATION, abs=1e-12)
    assert not {"val/matrix", "val/weight"} & set(outcome.metrics)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda batch: {"matrix": torch.zeros(2, 2)}, "metric-not-scalar"),
        (lambda batch: {"rows": torch.zeros(len(batch[1]))}, "metric-shape"),
        (lambda batch: {"weight": torch.zeros(())}, "reserved-metric"),
    ],
    ids=["matrix", "rows", "weight"],
)
def test_metrics_that_cannot_be_used(make: Any, code: str, golden: Any) -> None:
    with pytest.raises(UnusableCode) as caught:
        fit(toy_config(task__path=with_metrics(make), data__path=lambda: points(96, VALIDATION)))
    assert caught.value.code == code
    golden(str(caught.value))
