"""A model of which each step uses only a part, over two ranks."""

from typing import Any

import torch
from torch import nn

from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.toys import CLASSES, FEATURES, fit, toy_config


class Branches(nn.Module):
    """Uses one of two layers at each call in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, CLASSES) for _ in range(2)])
        self.calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        result: torch.Tensor = self.layers[self.calls % 2](features)
        return result


def weights_of(ranks: DistContext) -> str:
    config = toy_config(
        model__path=Branches, parallel__find_unused_parameters=True, scaling__num_workers=ranks.world_size
    )
    outcome: Any = fit(config, ranks)[1]
    return str(outcome.weights_sha256)


def test_parameters_without_a_gradient_are_not_waited_for() -> None:
    first, second = run_ranks(weights_of, 2)
    assert first == second
