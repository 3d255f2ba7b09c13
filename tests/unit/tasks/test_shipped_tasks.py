"""What holds for every shipped task: its sums over micro batches, its names of metrics, and batches that it refuses."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskConfig, TaskOutput
from paceline.tasks.classification import ClassificationConfig
from paceline.tasks.language_modeling import LanguageModelingConfig
from paceline.tasks.model_loss import ModelLossConfig
from paceline.tasks.multilabel import MultilabelConfig
from paceline.tasks.regression import RegressionConfig
from paceline.tasks.segmentation import SegmentationConfig
from support.refusals import refused

SAMPLES = 5


class OwnLoss(nn.Module):
    """Returns its own mean loss."""

    def forward(self, logits: Tensor) -> Any:
        return SimpleNamespace(loss=logits.square().mean(), logits=logits)


def outputs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, *shape, dtype=torch.float64, generator=generator).requires_grad_()


def classes(number: int, *shape: int) -> Tensor:
    return torch.randint(0, number, (SAMPLES, *shape), generator=torch.Generator().manual_seed(1))


def some_ignored(targets: Tensor, ignored: int) -> Tensor:
    targets[2:4, ..., 1:] = ignored
    targets[4] = ignored
    return targets


CASES: dict[str, tuple[TaskConfig, Any]] = {
    "classification": (
        ClassificationConfig(name="classification", label_smoothing=0.1),
        (outputs(3), classes(3)),
    ),
    "language_modeling": (
        LanguageModelingConfig(name="language_modeling"),
        (outputs(4, 3), some_ignored(classes(3, 4), -100)),
    ),
    "multilabel": (MultilabelConfig(name="multilabel"), (outputs(3), classes(2, 3))),
    "regression": (RegressionConfig(name="regression"), (outputs(3), outputs(3).detach() + classes(3, 3))),
    "segmentation": (
        SegmentationConfig(name="segmentation"),
        (outputs(3, 4, 4), some_ignored(classes(3, 4, 4), 255)),
    ),
    "model_loss": (ModelLossConfig(name="model_loss"), {"logits": outputs(3)}),
}


def made(name: str) -> tuple[Any, Any]:
    """A task around a model that gives its input, and a batch."""
    config, batch = CASES[name]
    return config.build(OwnLoss() if name == "model_loss" else nn.Identity()), batch


def parts(batch: Any, sizes: list[int]) -> Iterator[Any]:
    """The batch cut into micro batches."""
    if isinstance(batch, dict):
        return ({"logits": part} for part in batch["logits"].split(sizes))
    return zip(*(each.split(sizes) for each in batch), strict=True)


def computed(task: Task, batches: Iterator[Any]) -> dict[str, float]:
    """The metrics that evaluation over batches gives."""
    sums: dict[str, Any] = {}
    for batch in batches:
        output: TaskOutput = task.eval()(batch)
        for name, value in {"loss": output.loss_sum, "weight": output.weight, **output.metrics}.items():
            sums[name] = sums.get(name, 0) + torch.as_tensor(value).detach().double()
    return task.compute(sums)


@pytest.mark.parametrize("name", CASES)
def test_metrics_do_not_depend_on_the_micro_batches(name: str) -> None:
    task, batch = made(name)
    whole = computed(task, parts(batch, [SAMPLES]))
    assert sorted(whole) == sorted(CASES[name][0].evaluation_metrics)
    for sizes in ([1, 4], [2, 1, 2], [1] * SAMPLES):
        assert computed(task, parts(batch, sizes)) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_metrics_predictions_and_targets_are_for_evaluation_only(name: str) -> None:
    task, batch = made(name)
    output = task.train()(batch)
    assert (output.metrics, output.predictions, output.targets) == ({}, None, None)
    assert output.loss_sum.requires_grad
    evaluated = task.eval()(batch)
    assert not any(torch.as_tensor(value).requires_grad for value in evaluated.metrics.values())
    torch.testing.assert_close(evaluated.loss_sum, output.loss_sum)


LOGITS = torch.zeros(4, 3)
PIXELS = torch.zeros(3, 4, 5, 6)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("name", "batch", "code"),
    [
        ("classification", (LOGITS, torch.zeros(4)), "wrong-target"),
        ("classification", (LOGITS, torch.zeros(4, 3, dtype=torch.int64)), "wrong-target"),
        ("classification", (LOGITS, torch.zeros(4, 2)), "wrong-target"),
        ("classification", (LOGITS, torch.zeros(4, 1, dtype=torch.int64)), "wrong-target"),
        ("classification", (LOGITS, [0, 1, 2, 0]), "wrong-target"),
        ("classification", (torch.zeros(4, 3, 2), torch.zeros(4, 2, dtype=torch.int64)), "wrong-output"),
        ("classification", (LOGITS, torch.tensor([5, 6, 7, 5])), "target-out-of-range"),
        *(("multilabel", (LOGITS, torch.zeros(shape)), "wrong-shape") for shape in ((4, 1), (4,), (5, 3), (12,))),
        *(("regression", (LOGITS, torch.zeros(shape)), "wrong-shape") for shape in ((4,), (4, 1), (3, 4), (12,))),
        ("segmentation", (PIXELS, torch.zeros(3, 5, 5, dtype=torch.int64)), "wrong-shape"),
        ("segmentation", (PIXELS, torch.zeros(3, 1, 5, 6, dtype=torch.int64)), "wrong-shape"),
        ("segmentation", (PIXELS, torch.full((3, 5, 6), 4)), "target-out-of-range"),
    ],
)
def test_targets_that_do_not_fit_are_refused(name: str, batch: Any, code: str, is_training: bool) -> None:
    task, _ = made(name)
    refusal = refused(UnusableCode, task.train(is_training), batch)
    assert refusal.code == code
    if code == "target-out-of-range":
        assert refusal.fields == {"classes": 3 if name == "classification" else 4}
