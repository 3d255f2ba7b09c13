"""Weights cut up over the ranks compute what one process does."""

import pytest

from paceline.engine.ranks import Ranks
from support.ranks import run_ranks
from support.spread import require_same, training

CASES = {
    "two ranks": (2, {}),
    "adamw, clipped": (2, {"optimizer": {"name": "adamw", "lr": 0.01}, "trainer__max_grad_norm": 0.05}),
    "in pairs": (4, {"parallel__shard_size": 2, "trainer__max_grad_norm": 0.05}),
    "with checkpointed blocks": (2, {"trainer__activation_checkpointing": "full"}),
}


@pytest.mark.parametrize("case", CASES)
def test_cut_up_weights_train_as_whole_ones(case: str) -> None:
    world_size, overrides = CASES[case]
    alone = training(Ranks.current(), **overrides)
    ranks = run_ranks(training, world_size, parallel__strategy="fsdp", **overrides)
    require_same(ranks[0], alone, steps=6)
    shares = overrides.get("parallel__shard_size", world_size)
    assert sum(rank["held"] for rank in ranks) == alone["held"] * world_size / shares
