"""Seeds of the random generators before each micro-batch."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from paceline.callbacks.callback import Callback
from paceline.config.experiment import validate
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.seeding import StepSeeds, draws_only_from_torch
from paceline.tasks._classification import Classification
from support.toys import fit, tensors, toy_config


class Noisy(nn.Module):
    """A model that draws from Python's generator."""

    def forward(self, inputs):
        return inputs * random.random()


class Silent(Callback):
    """No hooks."""


class Drawing(Callback):
    """Draws at each step."""

    draws_random_numbers = True

    def __init__(self):
        self.drawn = []

    def on_step_end(self, ctx):
        self.drawn.append((ctx.step, torch.rand(()).item(), np.random.rand(), random.random()))


def config(**sections):
    return validate({"name": "seeds", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}, **sections})


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


class Mine(torch.optim.SGD):
    """A user's optimizer."""


def hooked():
    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda module, inputs: None)
    return model


def replaced():
    model = nn.Linear(2, 2)
    model.forward = lambda inputs: inputs * random.random()
    return model


@pytest.mark.parametrize(
    ("model", "sections", "optimizer", "callbacks", "only_torch"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout()), {}, torch.optim.SGD, [Silent()], True),
        (nn.Sequential(nn.Linear(2, 2), Noisy()), {}, torch.optim.SGD, [], False),
        (nn.ModuleList([nn.Linear(2, 2), nn.Sequential(Noisy())]), {}, torch.optim.SGD, [], False),
        (hooked(), {}, torch.optim.SGD, [], False),
        (replaced(), {}, torch.optim.SGD, [], False),
        (nn.Linear(2, 2), {}, Mine, [], False),
        (nn.Linear(2, 2), {"lr_scheduler": {"path": lambda step, total: 1.0}}, torch.optim.SGD, [], False),
        (nn.Linear(2, 2), {}, torch.optim.SGD, [Silent(), Drawing()], False),
    ],
    ids=["plain", "module", "in a list", "hook", "forward", "optimizer", "schedule", "callback"],
)
def test_code_of_others_may_draw_from_any_generator(model, sections, optimizer, callbacks, only_torch):
    task = Classification(model)
    drawing = optimizer(task.parameters(), lr=0.1)
    assert draws_only_from_torch(config(**sections), task, drawing, callbacks) is only_torch


def test_a_callback_draws_the_same_numbers_in_a_resumed_run(tmp_path):
    def draws_of(folder, *stops):
        drawing = []
        for stop in stops:
            drawing.append(Drawing())
            parts = {"task": {"name": "classification"}, "callbacks": [{"path": drawing[-1]}]}
            toy = toy_config(data__path=partial(tensors, 96), **parts)
            fit(toy, checkpoints=folder, reporter=MemoryReporter(stop_at_step=stop))
        return [drawn for each in drawing for drawn in each.drawn]

    assert draws_of(tmp_path / "whole", None) == draws_of(tmp_path / "resumed", 5, None)
