"""Seeds of the random generators before each micro-batch."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from paceline.config.experiment import validate
from paceline.engine.dist_context import DistContext
from paceline.engine.seeding import StepSeeds, draws_only_from_torch
from paceline.tasks._classification import Classification


class Noisy(nn.Module):
    """A model that draws from Python's generator."""

    def forward(self, inputs):
        return inputs * random.random()


class Silent:
    """A callback in all but its hooks."""


def config(**sections):
    return validate({"name": "seeds", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}, **sections})


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def draws(seeds, step, index):
    seeds.apply(step, index)
    return torch.rand(()).item(), np.random.rand(), random.random()


def test_micro_batches_draw_numbers_of_their_own():
    places = [(rank, step, index) for rank in range(3) for step in range(40) for index in range(3)]
    seeds = {rank: StepSeeds(7, DistContext(rank, 3, torch.device("cpu"))) for rank in range(3)}
    drawn = [draws(seeds[rank], step, index) for rank, step, index in places]

    assert len({numbers[0] for numbers in drawn}) == len(places)
    assert len({numbers[1] for numbers in drawn}) == len(places)
    assert len({numbers[2] for numbers in drawn}) == len(places)
    again = [draws(seeds[rank], step, index) for rank, step, index in reversed(places)]
    assert again[::-1] == drawn


def test_only_torch_is_seeded_where_nothing_else_is_drawn_from():
    seeds = StepSeeds(7, DistContext(0, 1, torch.device("cpu")), only_torch=True)
    first, second = draws(seeds, 3, 0), draws(seeds, 3, 0)

    assert first[0] == second[0]
    assert first[1] != second[1]
    assert first[2] != second[2]


@pytest.mark.parametrize(
    ("model", "only_torch"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout()), True),
        (nn.Sequential(nn.Linear(2, 2), Noisy()), False),
        (nn.ModuleList([nn.Sequential(Noisy())]), False),
    ],
)
def test_modules_of_others_may_draw_from_any_generator(model, only_torch):
    task = Classification(model)
    assert draws_only_from_torch(config(), task, optimizer_of(nn.Linear(1, 1))) is only_torch


def test_hooks_and_replaced_forward_passes_may_draw():
    plain, hooked, replaced = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    replaced.forward = lambda inputs: inputs * random.random()

    kinds = [draws_only_from_torch(config(), Classification(each), optimizer_of(plain)) for each in (hooked, replaced)]
    assert kinds == [False, False]


def test_optimizers_schedules_and_callbacks_of_others_may_draw():
    class Mine(torch.optim.SGD):
        pass

    task = Classification(nn.Linear(2, 2))
    plain = optimizer_of(task)
    assert draws_only_from_torch(config(), task, plain)
    assert not draws_only_from_torch(config(), task, Mine(task.parameters(), lr=0.1))
    assert not draws_only_from_torch(config(lr_scheduler={"path": lambda step, total: 1.0}), task, plain)
    assert not draws_only_from_torch(config(callbacks=[{"path": Silent}]), task, plain)
    assert draws_only_from_torch(config(callbacks=[{"name": "lr_monitor"}]), task, plain)
