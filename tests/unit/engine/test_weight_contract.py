"""The first training step finds means that are passed as sums, and weights that are not the number of samples."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.engine import build_step
from paceline.engine.order import MicroBatch
from paceline.engine.precision import Precision
from paceline.engine.seeding import seed_everything
from paceline.engine.weight_contract import WeightContract, halves
from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.refusals import refused
from support.sentences import MODEL, Sentences
from support.toys import CLASSES, Points, PointsTask, fit, net, net_with_dropout_and_norm, toy_config

LANGUAGE_MODEL: dict[str, Any] = {"model": MODEL, "data__path": lambda: (Sentences(32), Sentences(8))}


class MeanTask(PointsTask):
    """Passes the mean where the sum is due."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return replace(output, loss_sum=output.loss_sum / len(batch[1]))


class FromMean(PointsTask):
    """Passes the mean as such."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return TaskOutput.from_mean(output.loss_sum / len(batch[1]), len(batch[1]))


class TokenMean(Task):
    """A mean over tokens, as `F.cross_entropy` gives it."""

    weight_is_samples = False

    def forward(self, batch: Any) -> TaskOutput:
        tokens, targets = batch
        losses = F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
        return TaskOutput(losses, (targets != -100).sum())


class Tokens(TokenMean):
    """A sum over tokens whose weight is said to be the number of samples."""

    weight_is_samples = True

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return replace(output, loss_sum=output.loss_sum * output.weight)


def untrained(width: int = 8) -> nn.Module:
    """Its loss is log(classes) for each sample, as of a vision transformer whose head begins with zeros."""
    model = net(width)
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[1].bias)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"task__path": MeanTask}, "mean-not-sum"),
        ({"task__path": MeanTask, "model__path": untrained}, "mean-not-sum"),
        ({"task__path": MeanTask, "model__path": net_with_dropout_and_norm}, "mean-not-sum"),
        ({"task__path": MeanTask, "data__global_batch_size": 15}, "mean-not-sum"),
        ({"task__path": MeanTask, "trainer__gradient_accumulation_steps": 4}, "mean-not-sum"),
        ({**LANGUAGE_MODEL, "task__path": TokenMean}, "mean-not-sum"),
        ({**LANGUAGE_MODEL, "task__path": Tokens}, "weight-not-samples"),
    ],
    ids=["mean", "zeros", "norm", "odd", "accumulated", "tokens", "weight"],
)
def test_a_broken_contract_is_found_in_the_first_step(overrides: dict[str, Any], code: str, golden: Any) -> None:
    refusal = refused(UnusableCode, fit, toy_config(**overrides))
    assert refusal.code == code
    golden(str(refusal))


class MeanOfNoise(MeanTask):
    """Draws in evaluation too, so that nothing can be compared."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        return super().forward((features + 1e-3 * torch.randn_like(features), targets, ids))


class Contrastive(PointsTask):
    """A sum in which each sample is compared with all others of its batch."""

    def forward(self, batch: Any) -> TaskOutput:
        logits = F.normalize(self.model(batch[0]), dim=1)
        return TaskOutput(F.cross_entropy(logits @ logits.T, torch.arange(len(logits)), reduction="sum"), len(logits))


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"task__path": FromMean},
        {"task__path": Contrastive},
        {"task__path": MeanOfNoise},
        {"task__path": MeanTask, "data__global_batch_size": 1, "trainer__max_steps": 2},
        {"model__path": untrained},
        {"model__path": net_with_dropout_and_norm},
        {**LANGUAGE_MODEL, "task": {"name": "language_modeling"}},
    ],
    ids=["sum", "from mean", "contrastive", "noise", "one sample", "zeros", "norm", "tokens"],
)
def test_what_is_right_or_cannot_be_told_passes(overrides: dict[str, Any]) -> None:
    fit(toy_config(**overrides))


class Careless(PointsTask):
    """Changes its batch, its buffers and the generators, also in evaluation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        features.add_(self.shift).mul_(0.5)
        self.calls += 1
        self.shift = self.shift + 0.01
        noise = torch.rand(()).item() + np.random.rand() + random.random()
        return super().forward((features + 0.01 * noise, targets, ids))


def test_the_check_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(
        task__path=Careless, model__path=net_with_dropout_and_norm, trainer__gradient_accumulation_steps=2
    )
    checked = fit(config)
    generators = torch.rand(()).item(), np.random.rand(), random.random()
    monkeypatch.setattr(build_step, "WeightContract", lambda *args, **options: None)
    bare = fit(config)
    assert (torch.rand(()).item(), np.random.rand(), random.random()) == generators
    assert checked[1].weights_sha256 == bare[1].weights_sha256
    for name, buffer in bare[0].state.task.named_buffers():
        assert torch.equal(buffer, checked[0].state.task.get_buffer(name)), name
    assert checked[0].state.task.seen == bare[0].state.task.seen


def test_the_generators_continue() -> None:
    dataset, device = Points(8), torch.device("cpu")
    batch = torch.utils.data.default_collate([dataset[i] for i in range(8)])
    contract = WeightContract(Careless(net().double()), Precision("64-true", device), device, is_whole=True)
    drawn = []
    for watched in (False, True):
        seed_everything(1)
        if watched:
            next(contract.watch(iter([(MicroBatch(torch.arange(8), 8), batch)])))
        drawn.append([torch.rand(()).item(), np.random.rand(), random.random()])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(4, 2), torch.zeros(())),
        (torch.zeros(4, 2), torch.zeros(3)),
        ("text", 4),
        torch.zeros(1, 2),
        nn.utils.rnn.pack_padded_sequence(torch.ones(4, 4, 1), torch.tensor([4, 2, 1, 1]), batch_first=True),
    ],
    ids=["number", "others", "no tensor", "one sample", "packed"],
)
def test_batches_that_cannot_be_halved(batch: Any) -> None:
    assert halves(batch, batch.shape[0] if isinstance(batch, torch.Tensor) else 4) is None


def test_halves_of_a_batch() -> None:
    dataset = Points(5)
    batch = {"features": torch.stack([dataset[i][0] for i in range(5)]), "targets": torch.arange(5) % CLASSES}
    cut = halves(batch, 5)
    assert cut is not None
    assert [part["targets"].tolist() for part in cut] == [[0, 1], [2, 0, 1]]
