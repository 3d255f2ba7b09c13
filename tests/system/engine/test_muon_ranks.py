"""Muon where each rank holds a slice of each matrix: the same weights as in one process."""

from typing import Any

import pytest
import torch

from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.spread import training


def weights(ranks: DistContext, precision: str, **overrides: Any) -> Any:
    optimizer = {"name": "muon", "weight_decay": 0.01, "adamw_match": "none of them"}
    return training(ranks, optimizer=optimizer, trainer__precision=precision, **overrides)["weights"]


@pytest.mark.parametrize(("precision", "tolerance"), [("64-true", 1e-10), ("32-true", 1e-6)])
def test_two_ranks_with_slices_end_with_the_weights_of_one_process(precision: str, tolerance: float) -> None:
    alone = weights(DistContext.current(), precision)
    sliced = run_ranks(weights, 2, precision, parallel__strategy="fsdp")[0]
    torch.testing.assert_close(sliced, alone, rtol=0, atol=tolerance)
