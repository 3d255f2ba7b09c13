"""The gradient's norm, and steps that fp16's loss scaling leaves out.

fp16 itself runs on CUDA alone; its scaler works on the CPU too, and is put in here by hand.
"""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine import build
from paceline.engine.outcome import Diverged
from paceline.engine.precision import MINIMUM_SCALE, Precision
from paceline.engine.reporter import MemoryReporter
from paceline.tasks.base import TaskOutput
from support.refusals import refused
from support.toys import Points, PointsTask, built, fit, net, toy_config

NAN, INF = float("nan"), float("inf")


def scaled(init_scale: float = 2.0**16) -> Precision:
    """float32 with a loss scaler."""
    precision = Precision("32-true", torch.device("cpu"))
    precision._scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=3)
    return precision


@pytest.fixture
def scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trainer gets a loss scaler that overflows only where the data do."""
    monkeypatch.setattr(build, "Precision", lambda name, device: scaled())


@pytest.fixture
def overflowing_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trainer gets a loss scaler that overflows at first, and whenever it tries a larger scale."""
    monkeypatch.setattr(build, "Precision", lambda name, device: scaled(2.0**127))


def steep_net() -> nn.Module:
    """One with a gradient so large that the loss scale cannot be 2 ** 127."""

    class Steep(nn.Sequential):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return super().forward(features) * 64

    return Steep(net())


class Scaling(Points):
    """Features times a factor: of one sample, or of all."""

    def __init__(self, factor: float, only: int | None = None) -> None:
        super().__init__(96)
        self.factor, self.only = factor, only

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        features, target, index = super().__getitem__(index)
        return (features * self.factor if self.only in (index, None) else features), target, index


def float32_config(**overrides: Any) -> Any:
    return toy_config(trainer__precision="32-true", **overrides)


def steep_config(**overrides: Any) -> Any:
    return float32_config(model__path=steep_net, optimizer__lr=1e-4, **overrides)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_norm_is_that_of_the_logged_steps_gradient_before_clipping(accumulation: int) -> None:
    config = toy_config(
        trainer__max_grad_norm=0.05, trainer__log_every_n_steps=5, trainer__gradient_accumulation_steps=accumulation
    )
    trainer = built(config)
    norms: list[float] = []
    step = trainer.state.precision.step

    def noting(optimizer: Any, parameters: Any, *others: Any) -> Any:
        norms.append(float(torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()))
        return step(optimizer, parameters, *others)

    trainer.state.precision.step = noting
    trainer.fit()
    assert min(norms) > 0.05
    assert trainer.reporter.values("grad_norm") == pytest.approx([norms[4], norms[9], norms[11]], abs=1e-12)


def test_without_clipping_and_scaler_nothing_is_counted() -> None:
    trainer, _, reporter = fit(float32_config())
    assert (reporter.values("grad_norm"), reporter.values("skipped_steps")) == ([], [])
    assert trainer.state.precision.state_dict() == {}


@pytest.mark.usefixtures("overflowing_scaler")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_skipped_steps_are_counted(fused: bool, limit: float | None) -> None:
    trainer = built(steep_config(optimizer__fused=fused, trainer__max_grad_norm=limit))
    updated: list[bool] = []
    step = trainer.state.precision.step

    def noting(*arguments: Any) -> Any:
        before = [parameter.detach().clone() for parameter in trainer.step.parameters]
        left_out = step(*arguments)
        updated.append(any(not torch.equal(*pair) for pair in zip(trainer.step.parameters, before, strict=True)))
        return left_out

    trainer.state.precision.step = noting
    trainer.fit()
    assert set(updated) == {False, True}
    assert trainer.reporter.values("skipped_steps") == [
        updated[: step + 1].count(False) for step in range(len(updated))
    ]
    norms = trainer.reporter.values("grad_norm")
    assert len(norms) == (updated.count(True) if limit else 0)
    assert all(map(isfinite, norms))


@pytest.mark.usefixtures("overflowing_scaler")
def test_the_count_continues_after_a_resume(tmp_path: Path) -> None:
    whole = fit(steep_config())[2].values("skipped_steps")
    *_, first = fit(steep_config(), checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=7))
    *_, second = fit(steep_config(), checkpoints=tmp_path)
    assert first.values("skipped_steps") == whole[:7]
    assert second.values("skipped_steps") == whole[7:]
    assert whole[6] > 1


@pytest.fixture
def uninitialized_is_nan() -> Iterator[None]:
    """Memory that nobody has written to holds NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("overflowing_scaler", "uninitialized_is_nan")
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_first_step_that_is_left_out_does_not_spoil_the_momentum(nesterov: bool) -> None:
    """torch's fused SGD would continue with memory that was never written to."""
    common = {"optimizer__nesterov": nesterov, "optimizer__weight_decay": 0.01, "trainer__deterministic": True}
    stock, fused = (fit(steep_config(optimizer__fused=fused, **common))[2] for fused in (False, True))
    assert stock.values("skipped_steps")[0] == 1
    assert fused.values("train/loss") == pytest.approx(stock.values("train/loss"), rel=1e-4)


# When a loss that is not finite ends training


def take_step(precision: Precision, factor: float) -> None:
    """One step over a parameter whose gradient is the factor."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    precision.scale((parameter * factor).sum()).backward()  # type: ignore[no-untyped-call]
    precision.step(optimizer, [parameter], None)


def verdict(precision: Precision, loss: float) -> tuple[str, int] | None:
    found = precision.check(loss)
    return None if found is None else (found.code, found.steps_in_a_row)


def test_without_a_scaler_it_always_does() -> None:
    precision = Precision("bf16-mixed", torch.device("cpu"))
    assert [verdict(precision, loss) for loss in (NAN, INF, -INF)] == [("loss-not-finite", 0)] * 3
    assert verdict(precision, 1.0) is None


@pytest.mark.parametrize(
    ("factors", "loss", "expected"),
    [
        ([INF], NAN, None),
        ([INF, 1.0, NAN], 1.0, None),
        ([1.0], INF, ("loss-not-finite", 0)),
        ([INF, 1.0], NAN, ("loss-not-finite", 0)),
        ([INF, NAN], NAN, ("loss-not-finite", 2)),
    ],
    ids=["left out", "some left out", "taken", "one of them taken", "all left out"],
)
def test_with_a_scaler_it_depends_on_the_steps_left_out(factors: list[float], loss: float, expected: Any) -> None:
    precision = scaled()
    take_step(precision, INF)
    assert precision.check(NAN) is None  # what was before a check does not matter after it
    for factor in factors:
        take_step(precision, factor)
    assert verdict(precision, loss) == expected


def test_steps_between_two_checks_outlive_a_resume() -> None:
    def resumed(precision: Precision) -> Precision:
        again = scaled()
        again.load_state_dict(precision.state_dict())
        return again

    precision = scaled()
    take_step(precision, INF)
    assert resumed(precision).check(NAN) is None
    take_step(precision, INF)
    precision = resumed(precision)
    take_step(precision, INF)
    assert verdict(resumed(precision), NAN) == ("loss-not-finite", 3)
    assert precision.check(1.0) is None
    precision = resumed(precision)
    take_step(precision, 1.0)
    assert verdict(precision, INF) == ("loss-not-finite", 0)  # what was left out before the check does not excuse it


def test_a_scale_that_collapsed_ends_training() -> None:
    precision = scaled(MINIMUM_SCALE)
    take_step(precision, 1.0)
    assert precision.check(1.0) is None
    take_step(precision, INF)
    assert verdict(precision, 1.0) == ("loss-scale-collapsed", 0)


def run(every: int, factor: float, only: int | None, **overrides: Any) -> tuple[Any, list[float], list[float]]:
    data = Scaling(factor, only), Points(4)
    config = float32_config(data__path=lambda: data, trainer__log_every_n_steps=every, **overrides)
    trainer, _, reporter = fit(config)
    return trainer, reporter.values("train/loss"), reporter.values("skipped_steps")


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize("accumulation", [1, 4])
def test_one_bad_sample_costs_its_steps_and_not_the_run(accumulation: int) -> None:
    """In float32 without a scaler the same data end the run: see test_training."""
    overrides = {"trainer__gradient_accumulation_steps": accumulation}
    trainer, each, _ = run(1, INF, 50, **overrides)
    assert len(each) == 12
    assert all(torch.isfinite(parameter).all() for parameter in trainer.step.parameters)
    assert [isfinite(loss) for loss in each].count(False) == (2 if accumulation == 1 else 0)

    _, threes, skipped = run(3, INF, 50, **overrides)
    assert all(map(isfinite, threes))
    assert skipped[-1] == 2
    if accumulation == 1:
        kept = [[loss for loss in each[start : start + 3] if isfinite(loss)] for start in range(0, 12, 3)]
        assert threes == pytest.approx([sum(losses) / len(losses) for losses in kept], rel=1e-6)


class Odd(PointsTask):
    """Its third loss is infinite, by a constant."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        offset = INF if self.training and len(self.seen) == 3 else 0.0
        return TaskOutput(output.loss_sum + offset, output.weight, output.metrics)


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize(
    ("data", "task", "row"), [(Scaling(NAN), PointsTask, 3), (Points(96), Odd, 0)], ids=["all bad", "step taken"]
)
def test_a_run_that_cannot_recover_ends_at_the_first_reading(data: Points, task: Any, row: int, golden: Any) -> None:
    config = float32_config(data__path=lambda: (data, Points(4)), task__path=task, trainer__log_every_n_steps=3)
    refusal = refused(Diverged, fit, config)
    assert (refusal.code, refusal.fields) == ("loss-not-finite", {"step": 3, "steps_in_a_row": row})
    golden(str(refusal))


@pytest.mark.usefixtures("scaler")
def test_weights_that_are_lost_end_the_run_though_every_step_after_is_left_out() -> None:
    trainer = built(float32_config(trainer__log_every_n_steps=3))
    step = trainer.state.precision.step

    def losing(optimizer: Any, parameters: Any, *others: Any) -> Any:
        left_out = step(optimizer, parameters, *others)
        if trainer.state.position.step == 4:
            parameters[0].data.fill_(NAN)
        return left_out

    trainer.state.precision.step = losing
    assert refused(Diverged, trainer.fit).fields == {"step": 9, "steps_in_a_row": 3}
