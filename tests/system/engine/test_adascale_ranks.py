"""AdaScale and the noise scale over two ranks: those of per-sample gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.engine.dist_context import DistContext
from support.adascale import reference, ten_steps
from support.ranks import run_ranks
from support.toys import fit, toy_config


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


NOISE_SCALE = {
    "optimizer__lr_scaling": "none",
    "trainer__noise_scale": True,
    "trainer__noise_scale_every_n_steps": 1,
}


def window(ranks: DistContext, overrides: dict[str, Any]) -> list[tuple[float, float]]:
    """Train; squared norm and variance at each step."""
    trainer, _, _ = fit(toy_config(**overrides, scaling__num_workers=ranks.world_size), ranks)
    return [tuple(each) for each in trainer.step._noise_scale.window]


@pytest.mark.parametrize(("weighted", "accumulation"), [(False, 1), (True, 2)])
def test_two_ranks_measure_the_noise_scale_of_per_sample_gradients(weighted: bool, accumulation: int) -> None:
    expected = reference(weighted, ranks=2, micro_batch=0, follows_gain=False)
    overrides = {**ten_steps(weighted), **NOISE_SCALE, "trainer__gradient_accumulation_steps": accumulation}
    first, second = run_ranks(window, 2, overrides)
    assert first == second
    assert [square for square, _ in first] == pytest.approx(expected.squares, rel=1e-10)
    assert [variance for _, variance in first] == pytest.approx(expected.variances, rel=1e-10)
