"""Moments of a step's gradient from its parts, where a parameter or a rank has none, or weights are uneven."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.engine.dist_context import DistContext
from paceline.engine.gradient_noise import GradientNoise, Moments, StepNumbers

ONE = torch.ones((), dtype=torch.float64)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in (3, 2)]


def expected(parts: list[tuple[Tensor, float]], samples: int) -> Moments:
    """By the formulas, from the gradient of each part's sum of losses and its weight."""
    counted = [(gradient, weight) for gradient, weight in parts if weight > 0]
    total = sum(weight for _, weight in counted)
    mean = torch.stack([gradient for gradient, _ in parts]).sum(0) / total
    squares = sum(float(gradient.square().sum()) / weight for gradient, weight in counted)
    variance = (squares - total * float(mean.square().sum())) / (len(counted) - 1)
    return Moments(float(mean.square().sum()) - variance / total, variance * samples / total)


def measured(noise: GradientNoise, own: list[nn.Parameter], step: list[tuple[list[Tensor | None], Any]]) -> StepNumbers:
    """Take in the micro-batches of a step: their gradients, divided by 10 samples, and their weights."""
    for number, (gradients, _) in enumerate(step):
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient / 10
        noise.end_micro_batch(number == len(step) - 1)
    total = sum(float(weight) for _, weight in step)
    for parameter in own:  # as `divide_by_weight` does
        if parameter.grad is not None:
            parameter.grad *= 10 / total
    return StepNumbers(*noise.numbers([weight for _, weight in step], ONE).tolist())


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("weights", [[4, 6, 2], [6, 4, 2], [4, 0, 8]])
def test_a_parameter_may_have_no_gradient_in_some_micro_batches(weights: list[int], kind: Any) -> None:
    own = parameters()
    noise = GradientNoise(own, DistContext.current())
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):  # the second step has the same weights
        whole = [torch.randn(5, generator=draw, dtype=torch.float64) for _ in weights]
        whole[1][3:] = 0.0
        whole[2][:] = 0.0 if weights[1] == 0 else whole[2]
        parts: list[list[Tensor | None]] = [[each[:3].clone(), each[3:].clone()] for each in whole]
        parts[1][1] = None
        if weights[1] == 0:
            whole[1][:], parts[1][0] = 0.0, torch.zeros(3, dtype=torch.float64)
        found = measured(noise, own, [(part, kind(weight)) for part, weight in zip(parts, weights, strict=True)])
        assert found.parts == sum(weight > 0 for weight in weights)
        moments = found.moments(10, 1, 1.0)
        assert moments == pytest.approx(expected(list(zip(whole, weights, strict=True)), 10), rel=1e-12)


def test_weights_in_another_order_are_not_taken_for_the_last_ones() -> None:
    own = parameters()
    noise = GradientNoise(own, DistContext.current())
    draw = torch.Generator().manual_seed(1)
    for weights in ([2.0, 8.0], [8.0, 2.0]):
        whole = [torch.randn(5, generator=draw, dtype=torch.float64) for _ in weights]
        step = [([each[:3].clone(), each[3:].clone()], weight) for each, weight in zip(whole, weights, strict=True)]
        moments = measured(noise, own, step).moments(10, 1, 1.0)  # type: ignore[arg-type]
        assert moments == pytest.approx(expected(list(zip(whole, weights, strict=True)), 10), rel=1e-12)


class Silent(DistContext):
    """A rank of two that hears nothing from the other one."""

    def sum(self, values: Tensor) -> Tensor:
        return values


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_samples_adds_nothing_but_the_gradient_that_the_first_has(rank: int) -> None:
    own = parameters()
    for parameter in own:
        parameter.grad = torch.full_like(parameter, 2.0)
    noise = GradientNoise(own, Silent(rank, 2, torch.device("cpu")))
    found = StepNumbers(*noise.numbers([], 4 * ONE).tolist())
    assert found == (StepNumbers(0.0, 0.0, 0.0, 20.0, 4.0) if rank == 0 else StepNumbers(0.0, 0.0, 0.0, 0.0, 0.0))
