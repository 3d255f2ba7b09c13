"""Two ranks that start from the weights of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.toys import toy_config


def trained(ranks: DistContext, weights: Path | None, checkpoints: Path | None = None, **overrides: Any) -> list[str]:
    """SHA-256 of the weights after training from others, and of those that training started from."""
    config = toy_config(
        scaling__num_workers=ranks.world_size, model__weights=weights and str(weights), callbacks=[{"name": "ema"}],
        **overrides,
    )  # fmt: skip
    reporter = MemoryReporter()
    trainer = build_trainer(config, ranks, reporter, checkpoints, find_weights=Path)
    first = [details["sha256"] for kind, details in reporter.events if kind == "initial_weights"]
    return [trainer.fit().weights_sha256, *first]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_start_from_the_same_weights(tmp_path: Path, strategy: str) -> None:
    here = DistContext.current()
    trained(here, None, tmp_path, seed=3)
    (checkpoint,) = tmp_path.glob("step-12")
    alone, loaded = trained(here, checkpoint, optimizer__lr=1e-300)  # as good as 0, which is refused
    ranks = run_ranks(trained, 2, checkpoint, parallel__strategy=strategy, optimizer__lr=1e-300)
    assert alone == loaded
    assert ranks[0] == [loaded, loaded]
    if strategy == "ddp":  # with fsdp, the first rank alone has the whole weights in the end
        assert ranks[1] == [loaded]
