"""A task that steps its optimizers itself, on several ranks: what one process computes."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.engine.dist_context import DistContext
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.engine.several import STEPS, bare_loop, pair_config
from support.ranks import run_ranks
from support.toys import Points, fit


def trained(ranks: DistContext, **overrides: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    trainer, _, reporter = fit(pair_config(scaling__num_workers=ranks.world_size, **overrides), ranks)
    return reporter.values("train/loss"), dict(trainer.state.task.model.state_dict())


@pytest.mark.parametrize(
    ("world_size", "batch", "samples"), [(2, 16, 43), (3, 18, 43), (2, 16, 33)], ids=["two", "three", "idle rank"]
)
def test_ranks_compute_what_one_process_does(world_size: int, batch: int, samples: int) -> None:
    """The last of 33 samples is a batch of its own, in which a rank without a sample takes part."""
    overrides = {"data__global_batch_size": batch, "data__path": lambda: (Points(samples), Points(10))}
    results = run_ranks(trained, world_size, **overrides)
    losses, expected = bare_loop(pair_config(**overrides))
    assert results[0][0] == pytest.approx(losses, rel=1e-12)
    for _, weights in results:
        for name, tensor in weights.items():
            assert torch.allclose(tensor, expected[name], rtol=1e-11, atol=1e-13), name


class Weighted(Task):
    """Samples count by their class, as tokens of a sentence would."""

    automatic_optimization = False
    weight_is_samples = False

    def configure_optimizers(self, build: Any) -> Any:
        return [build(self.model.parameters())]

    def training_step(self, batch: Any, optimizers: Any) -> TaskOutput:
        output = self(batch)
        (optimizer,) = optimizers
        optimizer.zero_grad()
        (output.loss_sum / output.weight).backward()
        optimizer.step(weight=output.weight)
        return output

    def forward(self, batch: Any) -> TaskOutput:
        weights = batch[1].double() + 1
        losses = F.cross_entropy(self.model(batch[0]), batch[1], reduction="none")
        return TaskOutput((losses * weights).sum(), weights.sum())


class WeightedAlone(Weighted):
    """The same with one optimizer, by the engine."""

    automatic_optimization = True

    def configure_optimizers(self, build: Any) -> Any:
        return build(self.model.parameters())


def net() -> nn.Module:
    return nn.Linear(6, 3)


def test_weights_other_than_samples_count() -> None:
    manual = run_ranks(trained, 2, task__path=Weighted, model__path=net)
    losses, expected = run_ranks(trained, 1, task__path=WeightedAlone, model__path=net)[0]
    assert manual[0][0] == pytest.approx(losses, rel=1e-12)
    for name, tensor in manual[0][1].items():
        assert torch.allclose(tensor, expected[name], rtol=1e-11, atol=1e-13), name


class Centred(nn.Module):
    """Subtracts a running mean of earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.seen: list[list[float]] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        centred = features - self.mean
        if self.training:
            self.seen.append(self.mean.tolist())
            self.mean = (self.mean + features.detach().mean(dim=0)) / 2
        return centred


def seen_buffers(ranks: DistContext) -> list[list[float]]:
    centred = Centred()

    def build() -> nn.Module:
        return nn.Sequential(centred, nn.Linear(6, 3))

    fit(pair_config(scaling__num_workers=ranks.world_size, task__path=Weighted, model__path=build), ranks)
    return centred.seen


def test_buffers_are_those_of_rank_0_as_with_ddp() -> None:
    first, second = run_ranks(seen_buffers, 2)
    assert first == second
    assert len({tuple(each) for each in first}) == STEPS
