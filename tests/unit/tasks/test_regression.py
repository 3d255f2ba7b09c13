"""Regression losses, and metrics from sums over micro-batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.regression import RegressionConfig

OUTPUTS = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.5, 0.0], [3.0, 2.0]])
TARGETS = torch.tensor([[1.5, 4.0], [2.0, 3.5], [4.0, 1.0], [1.0, 0.5]])


def build(**fields: Any) -> Task:
    return RegressionConfig(name="regression", **fields).build(nn.Identity())


@pytest.mark.parametrize(
    ("fields", "loss"),
    [
        ({}, F.mse_loss),
        ({"loss": "mae"}, F.l1_loss),
        ({"loss": "huber", "huber_delta": 0.7}, lambda a, b: F.huber_loss(a, b, delta=0.7)),
    ],
)
def test_the_loss_is_a_sum_over_samples_of_the_mean_over_outputs(fields: dict[str, Any], loss: Any) -> None:
    output = build(**fields).train()((OUTPUTS, TARGETS))
    torch.testing.assert_close(output.loss_sum, 4 * loss(OUTPUTS, TARGETS))
    assert output.weight == 4


def metrics_of(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    task = build().eval()
    output = task((outputs, targets))
    sums = {"loss": output.loss_sum, "weight": torch.as_tensor(output.weight), **output.metrics}
    return task.compute({name: value.double() for name, value in sums.items()})


def test_metrics_are_those_of_their_formulas() -> None:
    y, error = TARGETS.double(), OUTPUTS.double() - TARGETS.double()
    r2 = (1 - error.square().sum(0) / (y - y.mean(0)).square().sum(0)).mean().item()
    expected = {"loss": error.square().mean().item(), "mae": error.abs().mean().item(), "r2": r2}
    assert metrics_of(OUTPUTS, TARGETS) == pytest.approx(expected, rel=1e-6)


def test_r2_of_targets_that_are_all_the_same_is_0() -> None:
    outputs, targets = torch.randn(9, generator=torch.Generator().manual_seed(0)), torch.full((9,), 0.1)
    assert metrics_of(outputs, targets)["r2"] == 0.0


@pytest.mark.parametrize("samples", [1, 4])
def test_a_column_of_outputs_is_compared_with_a_vector_of_targets(samples: int) -> None:
    outputs, targets = OUTPUTS[:samples, :1], TARGETS[:samples, 0]
    expected = F.mse_loss(outputs[:, 0], targets, reduction="sum")
    assert build()((outputs, targets)).loss_sum == expected
    assert build()((outputs[:, 0], targets[:, None])).loss_sum == expected


def test_half_precision_outputs_are_summed_in_float32() -> None:
    assert build()((OUTPUTS.bfloat16(), TARGETS)).loss_sum.dtype == torch.float32
