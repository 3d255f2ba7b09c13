"""Models and tasks that use more than the usual: spread over two ranks they train as in one process, or are refused."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.engine.ranks import Ranks
from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.spread import blocks, training
from support.toys import CLASSES, FEATURES, PointsTask

FSDP, PIPELINE = {"parallel__strategy": "fsdp"}, {"parallel__strategy": "pipeline"}


class Noisy(PointsTask):
    """Draws a random number before it calls its model, and uses it in the loss again; has a buffer of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.register_buffer("mean", torch.full((FEATURES,), 0.5))

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        strength = torch.rand(()) if self.training else torch.ones(())
        output = super().forward(((features - self.mean) * strength, targets, ids))
        return TaskOutput(output.loss_sum * (1 + strength), output.weight, output.metrics)


class Twice(PointsTask):
    """Calls its model twice."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        return super().forward((features + self.model(features).sum(), targets, ids))


class InPlace(nn.Module):
    """Writes over what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.activation, self.layer = nn.ReLU(inplace=True), nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(self.activation(inputs))


class Shared(nn.Module):
    """Two blocks with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.blocks[2][0].weight = self.blocks[0][0].weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def scaled() -> nn.Module:
    """With a parameter that is a single number."""
    model = blocks()
    model[0].register_parameter("scale", nn.Parameter(torch.ones(())))
    return model


def from_numpy() -> nn.Module:
    """Initial weights of numpy's generator."""
    model = blocks()
    model[0].weight.data = torch.from_numpy(np.random.randn(*model[0].weight.shape)).float()
    return model


def by_rank() -> nn.Module:
    """Initial weights that no seed decides."""
    model = blocks()
    model[0].weight.data += torch.distributed.get_rank()
    return model


def frozen() -> nn.Module:
    """Nothing but the head is trained."""
    model = blocks()
    model[:2].requires_grad_(False)
    return model


SAME = {
    "a task that draws before its model": ({"task__path": Noisy}, PIPELINE),
    "numpy": ({"model__path": from_numpy}, FSDP),
    "numpy in a pipeline": ({"model__path": from_numpy}, PIPELINE),
    "in place": ({"model__path": lambda: nn.Sequential(nn.Linear(FEATURES, 8), InPlace())}, PIPELINE),
    "shared weights": ({"model__path": Shared}, FSDP),
    "frozen": ({"model__path": frozen}, FSDP),
}
REFUSED = {
    "a task that calls its model twice": ({"task__path": Twice}, PIPELINE, "once, not twice"),
    "a single number": ({"model__path": scaled}, FSDP, r"model.0.scale is a single number.*shape \[1\]"),
    "unlike starts": ({"model__path": by_rank}, FSDP, "different weights"),
    "unlike starts in a pipeline": ({"model__path": by_rank}, PIPELINE, "different weights"),
    "frozen in a pipeline": ({"model__path": frozen}, PIPELINE, "1 stages at most"),
}


def trained(ranks: Ranks, **overrides: Any) -> dict[str, Any]:
    """What a run tells; of this file, so that the ranks get its classes."""
    return training(ranks, **overrides)


@pytest.mark.parametrize("case", SAME)
def test_they_train_as_in_one_process(case: str) -> None:
    overrides, strategy = SAME[case]
    alone = training(Ranks.current(), **overrides)
    spread = run_ranks(trained, 2, **strategy, **overrides)[0]
    assert spread["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-9, rtol=0)


def refusal(ranks: Ranks, **overrides: Any) -> str:
    """Why a run is refused."""
    try:
        training(ranks, **overrides)
    except UnusableCode as error:
        return str(error)
    except RuntimeError:  # of the rank that lost its peer
        return ""
    return "trained"


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_spread_is_refused_with_a_cure(case: str) -> None:
    overrides, strategy, reason = REFUSED[case]
    told = [text for text in run_ranks(refusal, 2, **strategy, **overrides) if text]
    assert told
    for text in told:
        assert re.search(reason, text)
