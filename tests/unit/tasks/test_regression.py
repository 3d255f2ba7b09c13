"""Regression losses, and metrics from sums over micro-batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from paceline.tasks.regression import RegressionConfig
from support.refusals import refused

OUTPUTS = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.5, 0.0], [3.0, 2.0]])
TARGETS = torch.tensor([[1.5, 4.0], [2.0, 3.5], [4.0, 1.0], [1.0, 0.5]])


def build(**fields: Any) -> Task:
    return RegressionConfig(name="regression", **fields).build(nn.Identity())


def sums_of(task: Task, outputs: Tensor, targets: Tensor, sizes: list[int]) -> dict[str, Tensor]:
    """What evaluation over micro-batches adds up."""
    sums: dict[str, Any] = {}
    for part in zip(outputs.split(sizes), targets.split(sizes), strict=True):
        output: TaskOutput = task.eval()(part)
        weight = torch.as_tensor(output.weight)
        for name, value in {"loss": output.loss_sum, "weight": weight, **output.metrics}.items():
            sums[name] = sums.get(name, 0) + value.double()
    return sums


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
    assert (output.weight, output.metrics) == (4, {})


def test_metrics_do_not_depend_on_the_micro_batches() -> None:
    task = build()
    y, error = TARGETS.double(), OUTPUTS.double() - TARGETS.double()
    r2 = (1 - error.square().sum(0) / (y - y.mean(0)).square().sum(0)).mean().item()
    expected = {"loss": error.square().mean().item(), "mae": error.abs().mean().item(), "r2": r2}
    for sizes in ([4], [1, 3], [1, 1, 2]):
        assert task.compute(sums_of(task, OUTPUTS, TARGETS, sizes)) == pytest.approx(expected, rel=1e-6)


def test_r2_of_targets_that_are_all_the_same_is_0() -> None:
    task = build()
    outputs, targets = torch.randn(9, generator=torch.Generator().manual_seed(0)), torch.full((9,), 0.1)
    assert task.compute(sums_of(task, outputs, targets, [9]))["r2"] == 0.0


@pytest.mark.parametrize("samples", [1, 4])
def test_a_column_of_outputs_is_compared_with_a_vector_of_targets(samples: int) -> None:
    outputs, targets = OUTPUTS[:samples, :1], TARGETS[:samples, 0]
    expected = F.mse_loss(outputs[:, 0], targets, reduction="sum")
    assert build()((outputs, targets)).loss_sum == expected
    assert build()((outputs[:, 0], targets[:, None])).loss_sum == expected


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 4), (8,)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    assert refused(UnusableCode, build(), (OUTPUTS, torch.zeros(shape))).code == "wrong-shape"


def test_half_precision_outputs_are_summed_in_float32() -> None:
    assert build()((OUTPUTS.bfloat16(), TARGETS)).loss_sum.dtype == torch.float32
