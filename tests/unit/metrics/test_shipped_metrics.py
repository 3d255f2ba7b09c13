"""The shipped metrics against scikit-learn, over batches and over parts of the data."""

from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.metric import MetricConfig
from paceline.errors import ConfigError, UnusableCode
from paceline.metrics.base import build_metric
from support.refusals import refused
from support.toys import fit, tensors, toy_config

CLASSES = torch.tensor([0, 2, 1, 1, 4, 4, 2, 0, 2])
PREDICTED = torch.tensor([0, 1, 1, 1, 4, 2, 2, 1, 2])
NUMBERS = torch.linspace(1e4, 1e4 + 3, 9) + torch.tensor([0.1, -0.2, 0.3] * 3)
ESTIMATES = NUMBERS + torch.tensor([0.5, -0.25, 0.125, -1, 0, 0.75, 0.5, -0.5, 0.25])

CASES = {
    "f1": (PREDICTED, CLASSES),
    "iou": (PREDICTED, CLASSES),
    "r2": (ESTIMATES, NUMBERS),
    "mae": (ESTIMATES, NUMBERS),
    "rmse": (ESTIMATES, NUMBERS),
}


def reference(name: str, predictions: torch.Tensor, targets: torch.Tensor) -> float:
    """The metric by scikit-learn."""
    from sklearn import metrics

    if name in ("f1", "iou"):
        of_classes = metrics.f1_score if name == "f1" else metrics.jaccard_score
        return float(of_classes(targets, predictions, average="macro"))
    names = {"r2": "r2_score", "mae": "mean_absolute_error", "rmse": "root_mean_squared_error"}
    return float(getattr(metrics, names[name])(targets.double(), predictions.double()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("parts", [[9], [4, 5], [1, 0, 8], [2, 2, 2, 2, 1]])
def test_a_metric_is_that_of_scikit_learn(name: str, parts: list[int]) -> None:
    predictions, targets = CASES[name]
    expected = reference(name, predictions, targets)
    metric: Any = build_metric(MetricConfig(name=name))
    for _ in range(2):
        for part in zip(predictions.split(parts), targets.split(parts), strict=True):
            metric.update(*part)
        assert metric.compute() == pytest.approx(expected, rel=1e-9)
        metric.reset()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [0, 1, 4])
def test_parts_are_merged(name: str, share: int) -> None:
    """As on two workers, of which one may have nothing."""
    predictions, targets = CASES[name]
    metrics: list[Any] = [build_metric(MetricConfig(name=name)) for _ in range(2)]
    for metric, rows in zip(metrics, (slice(0, share), slice(share, None)), strict=True):
        metric.update(predictions[rows], targets[rows])
    states = [metric._counts if hasattr(metric, "_counts") else metric._parts for metric in metrics]
    metrics[0].synchronize(lambda mine: states)
    assert metrics[0].compute() == pytest.approx(reference(name, predictions, targets), rel=1e-9)


def test_ignored_targets_and_scores() -> None:
    metric: Any = build_metric(MetricConfig(name="iou", args={"ignore_index": 255}))
    targets = CLASSES.clone()
    targets[::2] = 255
    metric.update(torch.nn.functional.one_hot(PREDICTED, 5).float(), targets)
    assert metric.compute() == pytest.approx(reference("iou", PREDICTED[1::2], CLASSES[1::2]))


def test_numbers_are_no_classes() -> None:
    metric: Any = build_metric(MetricConfig(name="f1"))
    assert refused(UnusableCode, metric.update, ESTIMATES, NUMBERS).code == "not-classes"


class Plain:
    """A metric that knows nothing of workers."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.reset()

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.right += (predictions == targets).tolist()

    def compute(self) -> dict[str, float]:
        return {"share": self.scale * float(np.mean(self.right)), "count": float(len(self.right))}

    def reset(self) -> None:
        self.right: list[bool] = []


def classification(**overrides: Any) -> Any:
    return toy_config(task={"name": "classification"}, data__path=lambda: tensors(30), **overrides)


def test_metrics_of_the_config_are_reported() -> None:
    metrics = [{"name": "f1"}, {"name": "mine", "path": Plain, "args": {"scale": 2.0}}]
    _, outcome, reporter = fit(classification(metrics=metrics))
    assert outcome.metrics["val/mine/share"] == 2 * outcome.metrics["val/accuracy"]
    assert outcome.metrics["val/mine/count"] == 30
    assert len(reporter.values("val/f1")) == 2


def test_a_task_without_predictions_is_told_so() -> None:
    assert refused(UnusableCode, fit, toy_config(metrics=[{"name": "f1"}])).code == "no-predictions"
    assert refused(UnusableCode, fit, classification(metrics=[{"name": "f1", "path": dict}])).code == "not-a-metric"
    with pytest.raises(ConfigError):
        toy_config(metrics=[{"name": "f11"}])


class Counting:
    """Makes its state in `reset` alone, as its contract allows."""

    def reset(self) -> None:
        self.samples = 0

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.samples += len(targets)

    def compute(self) -> int:
        return self.samples


def test_a_metric_may_make_its_state_in_reset() -> None:
    config = classification(metrics=[{"name": "samples", "path": Counting}])
    assert fit(config)[1].metrics["val/samples"] == 30
