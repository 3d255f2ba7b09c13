"""The noise scale in one process: against known covariances and per-sample gradients, and through the training step."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine import build
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import StepStats
from paceline.engine.gradient_noise import Moments
from paceline.engine.noise_scale import LEAST, WINDOW, NoiseScale, noise_scale, student_quantile
from paceline.errors import ConfigError
from support.adascale import reference, ten_steps
from support.precision import scaled
from support.refusals import refused
from support.toys import fit, points, toy_config

NOISE = {
    "trainer__noise_scale": True,
    "trainer__noise_scale_every_n_steps": 1,
    "trainer__gradient_accumulation_steps": 4,
}
PLAIN = {"optimizer__lr_scaling": "none"}


def on_quadratic(seed: int, sizes: tuple[int, ...], steps: int = WINDOW) -> NoiseScale:
    """Measure at a point of a quadratic: 30 entries with known variances, whose expected gradient is known, too.

    Args:
        sizes: samples of each micro-batch.
    """
    draw = torch.Generator().manual_seed(seed)
    parameter = nn.Parameter(torch.zeros(30, dtype=torch.float64))
    measured = NoiseScale([parameter], DistContext.current(), 1, lambda loss: loss)
    # a sum of n normal variables is normal with n times the variance
    samples = torch.tensor(sizes, dtype=torch.float64)[:, None]
    noise = torch.randn(steps, len(sizes), 30, dtype=torch.float64, generator=draw) * (samples * VARIANCES).sqrt()
    gradients = (samples * EXPECTED + noise) / sum(sizes)
    for step in range(steps):
        measured.begin(step)
        for index in range(len(sizes)):
            parameter.grad = gradients[step, index].clone()
            measured.end_micro_batch(index == len(sizes) - 1)
        measured.end_gradient(StepStats(sum(sizes), list(sizes)))
    return measured


VARIANCES = torch.linspace(0.1, 3.0, 30, dtype=torch.float64)
EXPECTED = torch.full((30,), 0.2, dtype=torch.float64)
TRUE = float(VARIANCES.sum() / EXPECTED.square().sum())
"""38.75 samples."""


def test_a_known_noise_scale_is_found_and_covered() -> None:
    found = [on_quadratic(seed, (24, 16, 8, 3)).metrics() for seed in range(50)]
    assert median(each["noise_scale"] for each in found) == pytest.approx(TRUE, rel=0.1)
    assert sum(each["noise_scale_low"] <= TRUE <= each["noise_scale_high"] for each in found) >= 45


def test_without_an_expected_gradient_there_is_no_upper_limit() -> None:
    # what is measured where the expected gradient is zero: a squared norm on either side of it
    steps = [Moments(square, 10.0 + square) for square in (0.3, -0.4, 0.2, -0.3, 0.1, 0.2, -0.2, 0.15)]
    found = noise_scale(steps)
    assert found.high == float("inf")
    assert found.low < found.value


@pytest.mark.parametrize(("degrees", "quantile"), [(7, 2.3646), (30, 2.0423), (99, 1.9842)])
def test_the_quantile_of_student(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, rel=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_step_is_measured_as_from_per_sample_gradients(weighted: bool) -> None:
    expected = reference(weighted, ranks=1, micro_batch=4, follows_gain=False)
    trainer, _, _ = fit(toy_config(**{**ten_steps(weighted), **PLAIN, **NOISE}))
    window = trainer.step._noise_scale.window
    assert [each.square for each in window] == pytest.approx(expected.squares, rel=1e-10)
    assert [each.variance for each in window] == pytest.approx(expected.variances, rel=1e-10)
    for mine, theirs in zip(trainer.step.parameters, expected.weights, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12, rtol=0)


def test_the_gradient_is_measured_before_it_is_clipped() -> None:
    config = toy_config(**{**ten_steps(False), **PLAIN, **NOISE, "optimizer__lr": 1e-12})
    clipped = config.with_overrides({"trainer.max_grad_norm": 1e-3})
    free, cut = (fit(each)[0].step._noise_scale.window for each in (config, clipped))
    assert [each.square for each in cut] == pytest.approx([each.square for each in free], rel=1e-6)


def test_what_is_measured_changes_no_weight() -> None:
    plain = fit(toy_config(trainer__gradient_accumulation_steps=4))[1]
    every = fit(toy_config(**NOISE))[1]
    third = fit(toy_config(**{**NOISE, "trainer__noise_scale_every_n_steps": 3}))
    assert plain.weights_sha256 == every.weights_sha256 == third[1].weights_sha256
    assert len(third[0].step._noise_scale.window) == 4


def test_it_is_logged_once_enough_steps_were_measured() -> None:
    _, _, reporter = fit(toy_config(**NOISE))
    steps = [step for step, values in reporter.points if "noise_scale" in values]
    assert steps[0] == LEAST
    assert steps[-1] == 12
    low, value = reporter.values("noise_scale_low")[-1], reporter.values("noise_scale")[-1]
    assert 0 <= low < value


def test_a_resumed_run_logs_the_same(tmp_path: Path) -> None:
    config = toy_config(**NOISE, trainer__epochs=3)
    _, _, whole = fit(config, checkpoints=tmp_path / "whole")
    fit(config.with_overrides({"trainer.epochs": 1}), checkpoints=tmp_path / "parts")
    _, _, second = fit(config, checkpoints=tmp_path / "parts")
    assert second.values("noise_scale") == whole.values("noise_scale")[-len(second.values("noise_scale")) :] != []


def test_loss_scaling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(toy_config(**NOISE))[2].values("noise_scale")
    monkeypatch.setattr(build, "Precision", scaled("64-true", init_scale=2.0**12, growth_interval=2))
    assert fit(toy_config(**NOISE))[2].values("noise_scale") == pytest.approx(plain, rel=1e-6)


def test_a_tail_of_one_micro_batch_is_passed_over() -> None:
    config = toy_config(**NOISE, data__path=lambda: points(33), trainer__epochs=2)
    assert len(fit(config)[0].step._noise_scale.window) == 4


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"trainer.gradient_accumulation_steps": "auto"}, "trainer.noise_scale"),
        ({"parallel.strategy": "fsdp", "scaling.num_workers": 2}, "trainer.noise_scale"),
        ({"parallel.comm_hook": "powersgd", "scaling.num_workers": 2}, "trainer.noise_scale"),
        ({"optimizer.lr_scaling": "adascale", "optimizer.base_batch_size": 8}, "trainer.noise_scale"),
    ],
)
def test_where_no_parts_can_be_compared_it_is_refused(overrides: dict[str, Any], place: str) -> None:
    assert place in str(refused(ConfigError, toy_config(**NOISE).with_overrides, overrides))
