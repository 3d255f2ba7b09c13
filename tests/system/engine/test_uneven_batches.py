"""A model that communicates in its forward pass, and batches that do not divide over the ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.toys import FEATURES, fit, points, toy_config


class Mean(nn.Module):
    """Counts its calls on all ranks in each forward pass, as a synchronised normalisation would."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)
        self.calls: list[int] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        count = torch.ones(())
        if dist.is_initialized():
            dist.all_reduce(count)
        self.calls.append(int(count))
        result: torch.Tensor = self.layer(features)
        return result


def uneven() -> Any:
    """The last batch has 5 samples, which are 2 micro-batches on one rank and 1 on the other."""
    return points(21, 5)


def calls_on(ranks: DistContext) -> list[int]:
    config = toy_config(
        model__path=Mean, data__path=uneven, data__global_batch_size=16, data__micro_batch_size=2, trainer__epochs=1,
        scaling__num_workers=ranks.world_size,
    )  # fmt: skip
    trainer, _, _ = fit(config, ranks)
    found: list[int] = trainer.state.task.model.calls
    return found


def test_all_ranks_call_the_model_equally_often() -> None:
    first, second = run_ranks(calls_on, 2)
    assert first == second == [2] * len(first)
    assert len(first) == 3 + 4 + 2 + 2, "of them, 3 look for a mean in place of a sum"
