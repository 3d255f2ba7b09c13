"""Binary cross-entropy over several labels."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.multilabel import MultilabelConfig

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [-0.1, 3.0, -2.0]], dtype=torch.float64)
TARGETS = torch.tensor([[1, 1, 1], [0, 1, 0]])


def build() -> Task:
    return MultilabelConfig(name="multilabel").build(nn.Identity())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_loss_and_accuracy_are_sums_over_samples_of_means_over_labels(dtype: torch.dtype) -> None:
    output = build().eval()((LOGITS, TARGETS.to(dtype)))
    torch.testing.assert_close(output.loss_sum, 2 * F.binary_cross_entropy_with_logits(LOGITS, TARGETS.double()))
    assert output.weight == 2
    assert output.metrics["accuracy"].item() == pytest.approx(5 / 3)
    assert output.predictions.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert output.targets.tolist() == TARGETS.tolist()
