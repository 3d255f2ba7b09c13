"""The names of metrics that a config is checked by are those that the shipped tasks report."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.tasks.base import TaskConfig
from paceline.tasks.classification import ClassificationConfig
from paceline.tasks.language_modeling import LanguageModelingConfig
from paceline.tasks.model_loss import ModelLossConfig
from paceline.tasks.multilabel import MultilabelConfig
from paceline.tasks.regression import RegressionConfig
from paceline.tasks.segmentation import SegmentationConfig


class OwnLoss(nn.Module):
    def forward(self, logits: torch.Tensor) -> Any:
        return SimpleNamespace(loss=logits.mean(), logits=logits)


CLASSES = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (ClassificationConfig(name="classification"), (torch.randn(2, 3), CLASSES)),
        (LanguageModelingConfig(name="language_modeling"), (torch.randn(2, 4, 3), torch.ones(2, 4, dtype=torch.long))),
        (MultilabelConfig(name="multilabel"), (torch.randn(2, 3), torch.ones(2, 3))),
        (RegressionConfig(name="regression"), (torch.randn(2, 3), torch.randn(2, 3))),
        (SegmentationConfig(name="segmentation"), (torch.randn(2, 3, 4, 4), torch.ones(2, 4, 4, dtype=torch.long))),
        (ModelLossConfig(name="model_loss"), {"logits": torch.randn(2, 3)}),
    ],
    ids=lambda value: value.name if isinstance(value, TaskConfig) else "",
)
def test_the_names_are_those_that_the_task_reports(config: Any, batch: Any) -> None:
    task = config.build(OwnLoss() if config.name == "model_loss" else nn.Identity()).eval()
    output = task(batch)
    sums = {"loss": output.loss_sum, "weight": torch.as_tensor(output.weight), **output.metrics}
    assert sorted(task.compute({name: each.double() for name, each in sums.items()})) == sorted(
        config.evaluation_metrics
    )
