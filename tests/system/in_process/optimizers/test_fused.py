"""The fused kernels on CPU: when `auto` takes them, and that they compute what the loop over parameters does."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine.reporter import MemoryReporter
from paceline.optimizers._state import is_fusable
from paceline.optimizers.adamw import AdamWConfig
from paceline.optimizers.sgd import SGDConfig
from support.toys import FEATURES, fit, fit_in_two, net, toy_config


@pytest.mark.parametrize("config", [SGDConfig(name="sgd"), AdamWConfig(name="adamw")], ids=lambda config: config.name)
def test_auto_takes_the_kernels_that_torch_has(config: SGDConfig | AdamWConfig) -> None:
    assert config.wants_fused("cuda", fusable=True)
    assert config.wants_fused("cpu", fusable=True)
    assert not config.wants_fused("cpu", fusable=False)
    assert not config.wants_fused("mps", fusable=True)
    assert config.model_copy(update={"fused": True}).wants_fused("cpu", fusable=False)
    assert not config.model_copy(update={"fused": False}).wants_fused("cpu", fusable=True)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "momentum": 0.0},
        {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    ],
)
def test_the_kernel_computes_the_same(optimizer: dict[str, Any]) -> None:
    losses = {}
    for fused in (False, "auto"):
        trainer, _, reporter = fit(toy_config(optimizer={**optimizer, "fused": fused}))
        assert bool(trainer.state.optimizer.defaults["fused"]) == (fused == "auto")
        losses[fused] = reporter.values("train/loss")
    assert len(losses["auto"]) == 12
    assert losses["auto"] == pytest.approx(losses[False], abs=1e-13)


class Digits(nn.Module):
    """Rounded features."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.abs().long().clamp(max=9)


class Late(nn.Module):
    """A part of it takes no part in the first steps."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = net(), net()
        self.steps = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return self.early(features) + (self.late(features) if self.steps > 3 else 0)


@pytest.mark.parametrize("stop", [12, 2, 5])
def test_a_first_gradient_may_come_late(tmp_path: Any, stop: int) -> None:
    """Also from a checkpoint that has no momentum of that part."""
    losses = {}
    for fused in (False, "auto"):
        folder = tmp_path / str(fused)
        config = toy_config(model__path=Late, optimizer__fused=fused)
        *_, first = fit(config, checkpoints=folder, reporter=MemoryReporter(stop_at_step=stop))
        rest = fit(config, checkpoints=folder)[2]
        losses[fused] = first.values("train/loss") + rest.values("train/loss")
    assert len(losses["auto"]) == 12
    assert losses["auto"] == pytest.approx(losses[False], abs=1e-13)


class Gaps(nn.Module):
    """A weight that is a part of a larger tensor's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.ones(3, 10)
        self.weight = nn.Parameter(self.whole[:, :FEATURES])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.float() @ self.weight.T


def test_memory_between_the_rows_of_a_weight_stays() -> None:
    assert not is_fusable(Gaps().weight)
    trainer, *_ = fit(toy_config(model__path=Gaps, trainer__precision="32-true"))
    model = trainer.state.task.model
    assert torch.equal(model.whole[:, FEATURES:], torch.ones(3, 10 - FEATURES))
    assert not torch.equal(model.weight, torch.ones(3, FEATURES))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_resumed_run_in_channels_last_changes_no_bit(tmp_path: Any, optimizer: str) -> None:
    def image_net() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 4, (1, 2)), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(10, 3)
        )

    config = toy_config(
        model__path=image_net, optimizer={"name": optimizer, "lr": 0.01}, trainer__memory_format="channels_last"
    )
    whole = fit(config)[1].weights_sha256
    assert fit_in_two(config, tmp_path, 5)[1].weights_sha256 == whole


def test_sparse_gradients_do_without_the_kernel() -> None:
    def embedded() -> nn.Module:
        return nn.Sequential(Digits(), nn.EmbeddingBag(10, FEATURES, sparse=True), net())

    trainer, _, reporter = fit(toy_config(model__path=embedded, optimizer__momentum=0.0))
    assert trainer.state.task.model[1].weight.grad.is_sparse
    assert not trainer.state.optimizer.defaults["fused"]
    losses = reporter.values("train/loss")
    assert losses[-1] < losses[0]


def test_a_fused_run_resumes_without_the_kernel(tmp_path: Any) -> None:
    whole, *_ = fit(toy_config(optimizer__name="adamw"))
    fit(toy_config(optimizer__name="adamw"), checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=5))
    trainer, _, reporter = fit(toy_config(optimizer__name="adamw", optimizer__fused=False), checkpoints=tmp_path)
    assert len(reporter.values("train/loss")) == 7
    for mine, theirs in zip(trainer.state.task.parameters(), whole.state.task.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
