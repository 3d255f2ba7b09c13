"""Binary cross-entropy over several labels."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.multilabel import MultilabelConfig
from support.refusals import refused

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
    assert build().train()((LOGITS, TARGETS)).metrics == {}


@pytest.mark.parametrize("shape", [(2, 1), (2,), (3, 2), (6,)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    assert refused(UnusableCode, build(), (LOGITS, torch.zeros(shape))).code == "wrong-shape"
