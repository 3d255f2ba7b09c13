"""AdaScale's gain in one process: against per-sample gradients, at its limits, and through fp16's scaler and resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.config.derived import derive
from paceline.engine import build
from paceline.engine.adascale import AdaScale
from paceline.engine.dist_context import DistContext
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.adascale import ADASCALE, LR, reference, ten_steps
from support.precision import scaled
from support.toys import CLASSES, FEATURES, Points, PointsTask, built, fit, points, toy_config

ACCUMULATE = {"trainer__gradient_accumulation_steps": 4}


@pytest.mark.parametrize(("weighted", "zero_grad"), [(False, "zero"), (True, "set_to_none")])
def test_micro_batches_give_the_gain_of_per_sample_gradients(weighted: bool, zero_grad: str) -> None:
    expected = reference(weighted, ranks=1, micro_batch=4)
    trainer, _, reporter = fit(toy_config(**ten_steps(weighted), **ACCUMULATE, trainer__zero_grad=zero_grad))
    assert reporter.values("adascale_gain") == pytest.approx(expected.gains, rel=1e-10)
    assert reporter.values("lr") == pytest.approx([LR * gain for gain in expected.gains], rel=1e-10)
    assert sum(1.05 < gain < 3.95 for gain in expected.gains) > 5
    for mine, theirs in zip(trainer.step.parameters, expected.weights, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12, rtol=0)


def adascale_config(**overrides: Any) -> Any:
    return toy_config(**{**ADASCALE, **ACCUMULATE, **overrides})


def gains(**overrides: Any) -> list[float]:
    """The gain of each step of a run in this process."""
    return fit(adascale_config(**overrides))[2].values("adascale_gain")


def test_averages_are_means_at_first_and_then_decay() -> None:
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adascale = AdaScale([parameter], base_batch_size=1, global_batch_size=600, ranks=DistContext.current())
    squares, variances = [], []
    for first, second in [(3.0, 1.0), (2.0, 1.5), (5.0, -1.0), (0.5, 0.25), (4.0, 3.0)]:
        # two micro batches of 300 samples: the gradient's halves
        for half, is_last in ((first / 2, False), (second / 2, True)):
            parameter.grad = torch.tensor([half], dtype=torch.float64)
            adascale.end_micro_batch(is_last)
        gain = adascale.measure(600, [300, 300], torch.ones(()))
        mean = (first + second) / 2
        variance = 300 * ((first - mean) ** 2 + (second - mean) ** 2)
        variances.append(variance)
        squares.append(mean**2 - variance / 600)
    averages = []
    for values in (squares, variances):
        average = values[0]
        for value in values[1:]:  # 1 - 600/1000, which 1 - 1/t exceeds from the second step on
            average = 0.4 * average + 0.6 * value
        averages.append(average)
    square, variance = averages
    assert gain == pytest.approx((variance + square) / (variance / 600 + square), rel=1e-12)


class Noise(Points):
    """Targets that have nothing to do with the features, nor have the features anything in common."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
        return features, int(torch.randint(CLASSES, (), generator=generator)), index


def untrained_zeros() -> nn.Module:
    """Uniform predictions, whose expected gradient on random labels is zero."""
    model = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def test_limits_of_the_gain() -> None:
    """1 for equal samples and at the base batch size, the ratio of batch sizes for noise, below 1 for smaller ones."""
    assert gains(data__path=lambda: ([Points(1)[0]] * 96, Points(4))) == pytest.approx([1.0] * 12, abs=1e-9)
    assert gains(optimizer__base_batch_size=16) == [1.0] * 12
    smaller = gains(optimizer__base_batch_size=64)
    assert 0.25 <= min(smaller) <= max(smaller) < 1.0
    noise = gains(
        data__path=lambda: (Noise(1600), Points(4)),
        model__path=untrained_zeros,
        optimizer__lr=1e-9,
        trainer__epochs=1,
        data__global_batch_size=64,
        optimizer__base_batch_size=16,
    )
    assert len(noise) == 25
    assert noise[-1] > 3.7
    assert max(noise) <= 4.0


def test_a_short_last_batch_of_one_micro_batch_is_passed_over() -> None:
    # 33 samples: two whole steps, and one that has a single sample
    trainer, _, reporter = fit(adascale_config(data__path=lambda: points(33), trainer__epochs=1))
    measured = reporter.values("adascale_gain")
    assert len(measured) == 3
    assert measured[2] == measured[1]
    assert trainer.step.lr.adascale.state_dict()["steps"] == 2


def test_loss_scaling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gains()
    monkeypatch.setattr(build, "Precision", scaled("64-true", init_scale=2.0**12, growth_interval=2))
    assert gains() == pytest.approx(plain, rel=1e-9)


def test_steps_that_fp16_leaves_out_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(PointsTask):
        def forward(self, batch: Any) -> TaskOutput:
            output = super().forward(batch)
            return TaskOutput(output.loss_sum * 1e4, output.weight)

    monkeypatch.setattr(build, "Precision", scaled("32-true", init_scale=2.0**127, backoff_factor=2.0**-110))
    overrides = {"task__path": Loud, "optimizer__lr": 1e-6, "trainer__log_every_n_steps": 6}
    trainer, _, reporter = fit(adascale_config(**overrides))
    assert reporter.values("skipped_steps") == [1, 1]
    assert trainer.step.lr.adascale.state_dict()["steps"] == 11


def test_a_step_without_weight_is_passed_over() -> None:
    class Ignoring(Task):
        weight_is_samples = False

        def forward(self, batch: Any) -> TaskOutput:
            features, targets, _ = batch
            return TaskOutput(F.cross_entropy(self.model(features), targets) * 0, torch.zeros(()))

    trainer = built(adascale_config(task__path=Ignoring))
    trainer.step(trainer.data.loader.load(0, trainer.data.order.micro_batches(0, 0)), trainer.state.position.step)
    assert trainer.step.lr.adascale is not None
    assert trainer.step.lr.adascale.state_dict()["steps"] == 0
    assert trainer.step.lr.current == LR


def test_the_range_of_the_gain_is_shown_before_a_run(golden: Any) -> None:
    golden(dict(derive(adascale_config(), None).lines())["learning rate"])
