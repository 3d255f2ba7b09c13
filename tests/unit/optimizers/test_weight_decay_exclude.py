"""Which parameters decay, and that a saved state finds its parameters whatever their groups are."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from paceline.engine.build import build_optimizer
from paceline.engine.optimizer_state import load_optimizer, optimizer_tensors, optimizer_values
from support.toys import PointsTask, toy_config

NAMES = ["sgd", "adamw", "lars", "lamb", "nvlamb", "novograd", "schedule_free_adamw"]
LAYERWISE = ["lars", "lamb", "nvlamb"]
EXCLUDED = {"0.bias", "1.weight", "1.bias", "2.bias", "scale"}
"""The parameters that `norms_and_biases` names in `Net`."""


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(5)
        super().__init__(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
        self.scale = nn.Parameter(torch.ones(()))


def built(name: str, model: nn.Module, exclude: str = "norms_and_biases", decay: float = 0.1) -> torch.optim.Optimizer:
    config = toy_config(optimizer={"name": name, "weight_decay": decay, "weight_decay_exclude": exclude})
    return build_optimizer(config, PointsTask(model), 0.1, torch.device("cpu"))


def names(model: nn.Module, group: dict[str, Any]) -> set[str]:
    ids = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def step(optimizer: torch.optim.Optimizer, model: nn.Module, steps: range) -> None:
    for number in steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        (model(inputs) * model.get_parameter("scale")).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_are_treated_alike_are_one_group(name: str) -> None:
    (everything,) = built(name, Net(), exclude="none").param_groups
    (weights,) = built(name, nn.Linear(3, 2, bias=False)).param_groups
    (norms,) = built(name, nn.LayerNorm(3)).param_groups
    assert [group["weight_decay"] for group in (everything, weights, norms)] == [0.1, 0.1, 0.0]
    assert len(built(name, Net(), decay=0.0).param_groups) == (2 if name in LAYERWISE else 1)


def test_frozen_parameters_are_left_out() -> None:
    model = Net()
    model[0].weight.requires_grad_(False)
    weights, spared = built("sgd", model).param_groups
    assert names(model, weights) | names(model, spared) == EXCLUDED | {"2.weight"}


@pytest.mark.parametrize("name", NAMES)
def test_only_decaying_parameters_shrink_without_a_gradient(name: str) -> None:
    model = Net()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = built(name, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, before[key]) == (key in EXCLUDED), key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("before", "after"), [("none", "norms_and_biases"), ("norms_and_biases", "none"), ("none", "none")]
)
def test_a_saved_state_finds_its_parameters_and_continues_to_the_bit(name: str, before: str, after: str) -> None:
    """Through a file, and also where the parameters are in other groups afterwards: those decide on its decay alone."""
    whole, first, second = Net(), Net(), Net()
    optimizer = built(name, first, before)
    step(optimizer, first, range(3))
    file = save({key: tensor.contiguous() for key, tensor in optimizer_tensors(optimizer).items()})
    text = json.dumps(optimizer_values(optimizer))
    second.load_state_dict(first.state_dict())
    again = built(name, second, after)
    load_optimizer(again, load(file), json.loads(text))
    for mine, other in zip(second.parameters(), first.parameters(), strict=True):
        assert set(again.state[mine]) == set(optimizer.state[other])
        for entry, value in optimizer.state[other].items():
            torch.testing.assert_close(again.state[mine][entry], value, rtol=0, atol=0)
    if before == after:
        step(again, second, range(3, 6))
        step(built(name, whole, before), whole, range(6))
        assert all(map(torch.equal, second.parameters(), whole.parameters()))
