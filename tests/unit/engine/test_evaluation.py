"""Metrics of a validation set, from sums over its batches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paceline.errors import ConfigError, UnusableCode
from paceline.tasks.base import TaskOutput
from support.engine.confusion import Confusion, f1
from support.refusals import refused
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
    logits = trainer.state.task.model(torch.stack([dataset[i][0] for i in range(VALIDATION)]))
    targets = torch.tensor([dataset[i][1] for i in range(VALIDATION)])
    for target, predicted in zip(targets, logits.argmax(dim=1), strict=True):
        matrix[target, predicted] += 1
    assert outcome.metrics["val/loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), abs=1e-12)
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
    refusal = refused(
        UnusableCode, fit, toy_config(task__path=with_metrics(make), data__path=lambda: points(96, VALIDATION))
    )
    assert refusal.code == code
    golden(str(refusal))


class Constant:
    """A metric that is always 0.5."""

    def update(self, predictions: Any, targets: Any) -> None:
        pass

    def compute(self) -> float:
        return 0.5

    def reset(self) -> None:
        pass


class Predicting(PointsTask):
    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return TaskOutput(output.loss_sum, output.weight, output.metrics, predictions=batch[1], targets=batch[1])


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_metric_does_not_take_the_place_of_the_tasks_own(name: str) -> None:
    metrics = [{"name": name, "path": Constant}]
    refusal = refused(UnusableCode, fit, toy_config(task__path=Predicting, metrics=metrics))
    assert (refusal.code, refusal.fields["metric"]) == ("metric-name-taken", name)
    with pytest.raises(ConfigError) as caught:
        toy_config(task={"name": "classification"}, metrics=metrics)
    assert [problem.key for problem in caught.value.problems] == ["metrics.0.name"]


@pytest.mark.parametrize("metrics", [None, [1.0], {"a": None}, {"a": "1.."}, {"a": 10**400}])
def test_metrics_of_a_task_are_numbers_by_name(metrics: Any) -> None:
    refusal = refused(UnusableCode, fit, toy_config(task__path=with_metrics(lambda batch: metrics)))
    assert refusal.code == "metric-not-a-number"


@pytest.mark.parametrize("returned", [None, [1.0], {"a": None}, {"a": torch.ones(3)}])
def test_a_task_computes_numbers_by_name(returned: Any) -> None:
    class Computing(PointsTask):
        def compute(self, sums: Mapping[str, torch.Tensor]) -> Any:
            return returned

    assert refused(UnusableCode, fit, toy_config(task__path=Computing)).code == "metric-not-a-number"


@dataclass
class Boxes:
    """Predictions that are not one tensor."""

    best: torch.Tensor
    number: int


class Best:
    """The largest `best` of all batches."""

    def reset(self) -> None:
        self.value = 0.0

    def update(self, predictions: Any, targets: Any) -> None:
        assert not predictions.best.requires_grad
        self.value = max(self.value, float(predictions.best.max()), float(targets["classes"].max()))

    def compute(self) -> float:
        return self.value


def test_metrics_are_given_predictions_in_any_nesting() -> None:
    class Nested(PointsTask):
        def forward(self, batch: Any) -> Any:
            predictions = Boxes(torch.full((3,), 7.0, requires_grad=True), 1)
            return replace(super().forward(batch), predictions=predictions, targets={"classes": batch[1]})

    _, outcome, _ = fit(toy_config(task__path=Nested, metrics=[{"name": "best", "path": Best}]))
    assert outcome.metrics["val/best"] == 7.0
