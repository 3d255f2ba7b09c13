"""What a step tells of its gradient: its norm, and whether fp16's loss scaling left the step out.

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
from paceline.engine.build import build_trainer
from paceline.engine.precision import MINIMUM_SCALE, Precision
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trainer import Diverged, Trainer
from paceline.tasks.base import TaskOutput
from support.toys import Points, PointsTask, fit, net, toy_config

CPU = torch.device("cpu")
NAN, INF = float("nan"), float("inf")


def scaled(init_scale: float = 2.0**16) -> Precision:
    """float32 with a loss scaler."""
    precision = Precision("32-true", CPU)
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


class Poisoned(Points):
    """One sample is infinite."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        features, target, index = super().__getitem__(index)
        return (features * INF if index == 50 else features), target, index


def float32_config(**overrides: Any) -> Any:
    return toy_config(trainer__precision="32-true", **overrides)


def steep_config(**overrides: Any) -> Any:
    return float32_config(model__path=steep_net, optimizer__lr=1e-4, **overrides)


# The gradient's norm


def norm_before_clipping(trainer: Trainer) -> list[float]:
    """Each step's norm, taken beside the trainer's own."""
    norms: list[float] = []
    step = trainer.state.precision.step

    def noting(optimizer: Any, parameters: Any, *others: Any) -> Any:
        norms.append(float(torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()))
        return step(optimizer, parameters, *others)

    trainer.state.precision.step = noting  # type: ignore[method-assign]
    return norms


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_norm_is_that_of_the_logged_steps_gradient_before_clipping(accumulation: int) -> None:
    config = toy_config(
        trainer__max_grad_norm=0.05, trainer__log_every_n_steps=5, trainer__gradient_accumulation_steps=accumulation
    )
    reporter = MemoryReporter()
    trainer = build_trainer(config, Ranks.current(), reporter)
    norms = norm_before_clipping(trainer)
    trainer.fit()
    assert min(norms) > 0.05
    assert reporter.values("grad_norm") == pytest.approx([norms[4], norms[9], norms[11]], abs=1e-12)


def test_without_clipping_there_is_no_norm() -> None:
    assert fit(toy_config())[2].values("grad_norm") == []


# Steps that are left out


def updates_of(trainer: Trainer) -> list[bool]:
    """Whether each step changed the weights."""
    updated: list[bool] = []
    step = trainer.state.precision.step

    def noting(*arguments: Any) -> Any:
        before = [parameter.detach().clone() for parameter in trainer.parameters]
        left_out = step(*arguments)
        updated.append(any(not torch.equal(*pair) for pair in zip(trainer.parameters, before, strict=True)))
        return left_out

    trainer.state.precision.step = noting  # type: ignore[method-assign]
    return updated


@pytest.mark.usefixtures("overflowing_scaler")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_skipped_steps_are_counted(fused: bool, limit: float | None) -> None:
    reporter = MemoryReporter()
    config = steep_config(optimizer__fused=fused, trainer__max_grad_norm=limit)
    trainer = build_trainer(config, Ranks.current(), reporter)
    updated = updates_of(trainer)
    trainer.fit()
    assert False in updated
    assert True in updated
    skipped = [updated[: step + 1].count(False) for step in range(len(updated))]
    assert reporter.values("skipped_steps") == skipped
    norms = reporter.values("grad_norm")
    assert len(norms) == (updated.count(True) if limit else 0)
    assert all(map(isfinite, norms))


@pytest.mark.usefixtures("overflowing_scaler")
def test_the_count_goes_on_after_a_resume(tmp_path: Path) -> None:
    whole = fit(steep_config())[2].values("skipped_steps")
    reporter = MemoryReporter(stop_at_step=7)
    build_trainer(steep_config(), Ranks.current(), reporter, tmp_path).fit()
    _, _, second = fit(steep_config(), checkpoints=tmp_path)
    assert reporter.values("skipped_steps") == whole[:7]
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
def test_a_first_step_that_is_left_out_harms_no_momentum(nesterov: bool) -> None:
    """torch's fused SGD would go on with memory that was never written to."""
    stock, fused = (
        fit(
            steep_config(
                optimizer__fused=fused,
                optimizer__nesterov=nesterov,
                optimizer__weight_decay=0.01,
                trainer__deterministic=True,
            )
        )[2]
        for fused in (False, True)
    )
    assert stock.values("skipped_steps")[0] == 1
    assert fused.values("train/loss") == pytest.approx(stock.values("train/loss"), rel=1e-4)


def test_momentum_from_zeros_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = fit(float32_config())[1].weights_sha256
    monkeypatch.setattr(build, "complete_state", lambda optimizer: None)
    assert fit(float32_config())[1].weights_sha256 == zeros


def test_nothing_is_counted_without_a_scaler() -> None:
    trainer, _, reporter = fit(float32_config())
    assert reporter.values("skipped_steps") == []
    assert trainer.state.precision.state_dict() == {}


# When a loss that is not finite ends training


def take_step(precision: Precision, factor: float) -> None:
    """One step over a parameter whose gradient is the factor."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    precision.scale((parameter * factor).sum()).backward()  # type: ignore[no-untyped-call]
    precision.step(optimizer, [parameter], None)


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_without_a_scaler_it_always_does(loss: float) -> None:
    assert str(loss) in str(Precision("bf16-mixed", CPU).check(loss))
    assert Precision("bf16-mixed", CPU).check(1.0) is None


@pytest.mark.parametrize(
    ("factors", "loss", "reason"),
    [
        ([INF], NAN, None),
        ([INF, 1.0, NAN], 1.0, None),
        ([1.0], INF, "loss is inf"),
        ([INF, 1.0], NAN, "loss is nan"),
        ([INF, NAN], NAN, "loss is nan in 2 steps in a row"),
    ],
    ids=["left out", "some left out", "taken", "one of them taken", "all left out"],
)
def test_with_a_scaler_it_depends_on_what_was_left_out(factors: list[float], loss: float, reason: str | None) -> None:
    precision = scaled()
    take_step(precision, INF)
    assert precision.check(NAN) is None  # what was before a check does not matter after it
    for factor in factors:
        take_step(precision, factor)
    found = precision.check(loss)
    assert found is None if reason is None else reason in str(found)


def test_what_is_between_two_checks_outlives_a_resume() -> None:
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
    assert "3 steps in a row" in str(resumed(precision).check(NAN))
    assert precision.check(1.0) is None
    precision = resumed(precision)
    take_step(precision, 1.0)
    assert "loss is inf" in str(precision.check(INF))  # what was left out before the check does not excuse it


def test_a_scale_that_collapsed_ends_training() -> None:
    precision = scaled(MINIMUM_SCALE)
    take_step(precision, 1.0)
    assert precision.check(1.0) is None
    take_step(precision, INF)
    assert "scale fell" in str(precision.check(1.0))


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize("accumulation", [1, 4])
def test_one_bad_sample_costs_its_steps_and_not_the_run(accumulation: int) -> None:
    """In float32 without a scaler the same data end the run: see test_training."""
    overrides = {"trainer__gradient_accumulation_steps": accumulation}
    each, _, trainer = _fit_poisoned(1, **overrides)
    assert len(each) == 12
    assert all(torch.isfinite(parameter).all() for parameter in trainer.parameters)
    left_out = [step for step, loss in enumerate(each) if not isfinite(loss)]
    assert len(left_out) == (2 if accumulation == 1 else 0)

    threes, skipped, _ = _fit_poisoned(3, **overrides)
    assert all(map(isfinite, threes))
    assert skipped[-1] == 2
    if accumulation == 1:
        kept = [[loss for loss in each[start : start + 3] if isfinite(loss)] for start in range(0, 12, 3)]
        assert threes == pytest.approx([sum(losses) / len(losses) for losses in kept], rel=1e-6)


def _fit_poisoned(every: int, **overrides: Any) -> tuple[list[float], list[float], Trainer]:
    config = float32_config(data__path=lambda: (Poisoned(96), Points(4)), trainer__log_every_n_steps=every, **overrides)
    trainer, _, reporter = fit(config)
    return reporter.values("train/loss"), reporter.values("skipped_steps"), trainer


@pytest.mark.usefixtures("scaler")
def test_data_that_are_all_bad_end_the_run_at_the_first_reading() -> None:
    class Worthless(Points):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
            features, target, index = super().__getitem__(index)
            return features * NAN, target, index

    config = float32_config(data__path=lambda: (Worthless(96), Points(4)), trainer__log_every_n_steps=3)
    with pytest.raises(Diverged, match="loss is nan in 3 steps in a row at step 3"):
        fit(config)


@pytest.mark.usefixtures("scaler")
def test_a_loss_that_is_infinite_in_a_step_that_was_taken_ends_the_run() -> None:
    class Odd(PointsTask):
        def forward(self, batch: Any) -> TaskOutput:
            output = super().forward(batch)
            offset = INF if self.training and len(self.seen) == 2 else 0.0  # no gradient flows through it
            return TaskOutput(output.loss_sum + offset, output.weight, output.metrics)

    with pytest.raises(Diverged, match="loss is inf at step 3"):
        fit(float32_config(task__path=Odd, trainer__log_every_n_steps=3))


@pytest.mark.usefixtures("scaler")
def test_weights_that_are_lost_end_the_run_though_every_step_after_is_left_out() -> None:
    trainer = build_trainer(float32_config(trainer__log_every_n_steps=3), Ranks.current(), MemoryReporter())
    step = trainer.state.precision.step

    def losing(optimizer: Any, parameters: Any, *others: Any) -> Any:
        left_out = step(optimizer, parameters, *others)
        if trainer.state.position.step == 4:
            parameters[0].data.fill_(NAN)
        return left_out

    trainer.state.precision.step = losing  # type: ignore[method-assign]
    with pytest.raises(Diverged, match="in 3 steps in a row at step 9"):
        trainer.fit()
