"""AdaScale over two ranks: the gain of per-sample gradients, and the bugs that are usually made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paceline.engine.ddp as ddp_module
from paceline.engine.adascale import AdaScale
from paceline.engine.ranks import Ranks
from support.adascale import ADASCALE, reference, ten_steps
from support.ranks import run_ranks
from support.toys import fit, points, toy_config


def training(ranks: Ranks, overrides: dict[str, Any], plant: str | None = None) -> dict[str, Any]:
    """Train, and tell all that can be compared."""
    _PLANTS[plant]()
    trainer, outcome, reporter = fit(toy_config(**overrides, scaling__num_workers=ranks.world_size), ranks)
    return {
        "gains": reporter.values("adascale_gain"),
        "gain": trainer.adascale.gain,
        "weights": [parameter.detach().clone() for parameter in trainer.parameters],
        "sha": outcome.weights_sha256,
    }


def _plant_ddp_factor_forgotten() -> None:
    average = AdaScale._average

    def forgetful(self: AdaScale, samples: int, numbers: Any) -> None:
        average(self, samples, numbers._replace(squares_by_weight=numbers.squares_by_weight * 4))

    AdaScale._average = forgetful  # type: ignore[method-assign]


def _plant_seen_after_the_average() -> None:
    original = ddp_module.hook_into_exchange

    def late(model: Any, compress: Any, adascale: Any) -> None:
        def exchange(bucket: Any) -> Any:
            done = ddp_module.average(bucket)
            done.wait()
            AdaScale.see_bucket(adascale, bucket)
            return done

        original(model, exchange, None)

    import paceline.engine.build as build_module

    build_module.hook_into_exchange = late


_PLANTS = {
    None: lambda: None,
    "DDP's factor forgotten": _plant_ddp_factor_forgotten,
    "seen after the average": _plant_seen_after_the_average,
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


@pytest.mark.parametrize("plant", [plant for plant in _PLANTS if plant])
def test_planted_bugs_are_seen(plant: str) -> None:
    expected = reference(False, ranks=2, micro_batch=0)
    first, _ = run_ranks(training, 2, ten_steps(False), plant)
    assert len(first["gains"]) == 10
    assert first["gains"] != pytest.approx(expected.gains, rel=1e-2)


def test_compressed_gradients_are_seen_before_they_are_compressed() -> None:
    exact, _ = run_ranks(training, 2, ten_steps(False))
    first, second = run_ranks(training, 2, {**ten_steps(False), "parallel__comm_hook": "bf16"})
    assert first["gains"] != exact["gains"]
    assert first["gains"] == pytest.approx(exact["gains"], rel=2e-2)
    assert first["sha"] == second["sha"]


def part(ranks: Ranks, folder: Path, epochs: int) -> str:
    """Train to an epoch's end, from where the checkpoints are; several buckets."""
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
