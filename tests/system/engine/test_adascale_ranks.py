"""AdaScale over two ranks: the gain of per-sample gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.dist_context import DistContext
from support.adascale import ADASCALE, reference, ten_steps
from support.ranks import run_ranks
from support.toys import fit, points, toy_config


def training(ranks: DistContext, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train; all that can be compared."""
    trainer, outcome, reporter = fit(toy_config(**overrides, scaling__num_workers=ranks.world_size), ranks)
    return {
        "gains": reporter.values("adascale_gain"),
        "gain": trainer.step.lr.adascale.gain,
        "weights": [parameter.detach().clone() for parameter in trainer.step.parameters],
        "sha": outcome.weights_sha256,
    }


@pytest.mark.parametrize(("weighted", "accumulation"), [(False, 1), (False, 2), (True, 2)])
def test_two_ranks_give_the_gain_of_per_sample_gradients(weighted: bool, accumulation: int) -> None:
    expected = reference(weighted, ranks=2, micro_batch=0)
    overrides = {**ten_steps(weighted), "trainer__gradient_accumulation_steps": accumulation}
    first, second = run_ranks(training, 2, overrides)
    assert first["gains"] == pytest.approx(expected.gains, rel=1e-10)
    assert sum(1.05 < gain < 3.95 for gain in expected.gains) > 5
    assert (first["sha"], first["gain"]) == (second["sha"], second["gain"])
    for mine, theirs in zip(first["weights"], expected.weights, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12, rtol=0)


def test_compressed_gradients_are_seen_before_they_are_compressed() -> None:
    exact = reference(False, ranks=2, micro_batch=0).gains
    first, second = run_ranks(training, 2, {**ten_steps(False), "parallel__comm_hook": "bf16"})
    assert first["gains"] != pytest.approx(exact, rel=1e-10)
    assert first["gains"] == pytest.approx(exact, rel=2e-2)
    assert first["sha"] == second["sha"]


def part(ranks: DistContext, folder: Path, epochs: int) -> str:
    """Train to an epoch's end, from the newest checkpoint; several buckets."""
    config = toy_config(
        **ADASCALE,
        data__path=lambda: points(103, 31),
        trainer__precision="32-true",
        trainer__epochs=epochs,
        parallel__bucket_cap_mb=0.001,
        scaling__num_workers=ranks.world_size,
    )
    return str(fit(config, ranks, folder)[1].weights_sha256)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = run_ranks(part, 2, tmp_path / "whole", 2)
    run_ranks(part, 2, tmp_path / "parts", 1)
    assert run_ranks(part, 2, tmp_path / "parts", 2) == whole
