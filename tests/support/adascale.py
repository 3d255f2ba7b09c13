"""A slow reference for AdaScale: one gradient per sample, by loops, and the formulas as they are in the textbook."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from paceline.engine.order import DataOrder
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.toys import Points, net

TRAIN, BATCH, BASE, LR, STEPS = 103, 16, 4, 0.05, 10
ADASCALE: dict[str, Any] = {
    "optimizer__lr_scaling": "adascale",
    "optimizer__base_batch_size": BASE,
    "optimizer__lr": LR,
}


class Weighted(Task):
    """A task whose weights are uneven over samples, 0 among them."""

    weight_is_samples = False

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        weights = sample_weights(ids)
        losses = F.cross_entropy(self.model(features), targets, reduction="none")
        return TaskOutput((losses * weights).sum(), weights.sum())


def sample_weights(ids: torch.Tensor) -> torch.Tensor:
    return (ids % 4).double()


def ten_steps(weighted: bool) -> dict[str, Any]:
    """Overrides of the toy config for a run of ten steps, of which the seventh is short."""
    task = {"task__path": Weighted} if weighted else {}
    return {**ADASCALE, **task, "data__path": lambda: (Points(TRAIN), Points(4)), "trainer__max_steps": STEPS}


class Reference(NamedTuple):
    gains: list[float]
    squares: list[float]
    """Estimated squared norm of the expected gradient at each step."""
    variances: list[float]
    """Estimated variance of one sample's gradient at each step."""
    weights: list[torch.Tensor]
    """The model's, after the last step."""


def reference(weighted: bool, ranks: int, micro_batch: int, follows_gain: bool = True) -> Reference:
    """Train by the loops; the parts of a step are the ranks' shares, or one process's micro batches.

    Args:
        follows_gain: whether the learning rate is multiplied by the gain.
    """
    torch.manual_seed(0)
    model, dataset = net().double(), Points(TRAIN)
    order = DataOrder(samples=TRAIN, global_batch_size=BATCH, micro_batch_size=BATCH)
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    squares: list[float] = []
    variances: list[float] = []
    gains: list[float] = []
    for step in range(STEPS):
        ids = order.step_ids(*divmod(step, order.steps_per_epoch))
        parts = ids.tensor_split(ranks) if ranks > 1 else ids.split(micro_batch)
        weight_of = {i: float(sample_weights(torch.tensor(i))) if weighted else 1.0 for i in ids.tolist()}
        gradient_of = {i: weight_of[i] * _gradient(model, dataset[i]) for i in ids.tolist()}
        total = sum(weight_of.values())
        mean = sum(gradient_of.values()) / total
        between = torch.zeros((), dtype=torch.float64)
        for part in parts:
            weight = sum(weight_of[i] for i in part.tolist())
            gradient = sum(gradient_of[i] for i in part.tolist())
            between += weight * (gradient / weight - mean).square().sum()
        variance = between.item() / (len(parts) - 1)
        squares.append(mean.square().sum().item() - variance / total)
        variances.append(variance * len(ids) / total)
        square, variance = max(sum(squares) / len(squares), 0.0), sum(variances) / len(variances)
        gains.append((variance / BASE + square) / (variance / BATCH + square))
        _update(parameters, momenta, mean, LR * (gains[-1] if follows_gain else 1.0))
    return Reference(gains, squares, variances, [parameter.detach() for parameter in parameters])


def _gradient(model: nn.Module, sample: tuple[torch.Tensor, int, int]) -> torch.Tensor:
    features, target, _ = sample
    loss = F.cross_entropy(model(features[None]), torch.tensor([target]))
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])


def _update(parameters: list[nn.Parameter], momenta: list[torch.Tensor], mean: torch.Tensor, lr: float) -> None:
    gradients = mean.split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
            momentum.mul_(0.9).add_(gradient.view_as(momentum))
            parameter -= lr * momentum
