"""A model cut into stages computes what one process does."""

from typing import Any

import pytest

from paceline.engine.ranks import Ranks
from support.ranks import run_ranks
from support.spread import require_same, training

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "two stages": (2, {}),
    "as many micro batches as stages": (2, {"trainer__gradient_accumulation_steps": 1}),
    "clipped": (2, {"trainer__max_grad_norm": 0.05}),
    "two pipelines of two stages": (4, {"parallel__pipeline_stages": 2, "trainer__max_grad_norm": 0.05}),
    "with checkpointed blocks": (2, {"trainer__activation_checkpointing": "full"}),
}


@pytest.mark.parametrize("case", CASES)
def test_stages_train_as_the_whole_model(case: str) -> None:
    world_size, overrides = CASES[case]
    alone = training(Ranks.current(), **overrides)
    ranks = run_ranks(training, world_size, parallel__strategy="pipeline", **overrides)
    require_same(ranks[0], alone, steps=6)
    copies = world_size // overrides.get("parallel__pipeline_stages", world_size)
    assert sum(rank["held"] for rank in ranks) == alone["held"] * copies
