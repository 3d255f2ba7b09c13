"""The fused kernels on CPU: when `auto` takes them, and that they compute what the loop over parameters does."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.optimizers.adamw import AdamWConfig
from paceline.optimizers.sgd import SGDConfig
from support.toys import FEATURES, fit, net, toy_config


@pytest.mark.parametrize("config", [SGDConfig(name="sgd"), AdamWConfig(name="adamw")], ids=lambda config: config.name)
def test_auto_takes_the_kernels_that_torch_has(config: SGDConfig | AdamWConfig) -> None:
    assert config.wants_fused("cuda", fusable=True)
    assert config.wants_fused("cpu", fusable=True)
    assert not config.wants_fused("cpu", fusable=False)
    assert not config.wants_fused("mps", fusable=True)


def test_a_choice_of_the_user_stands() -> None:
    assert SGDConfig(name="sgd", fused=True).wants_fused("cpu", fusable=False)
    assert not SGDConfig(name="sgd", fused=False).wants_fused("cpu", fusable=True)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "momentum": 0.0},
        {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    ],
)
def test_the_kernel_computes_the_same(optimizer: dict[str, Any]) -> None:
    losses = {}
    for fused in (False, "auto"):
        trainer, _, reporter = fit(toy_config(optimizer={**optimizer, "fused": fused}))
        assert bool(trainer.optimizer.defaults["fused"]) == (fused == "auto")
        losses[fused] = reporter.values("train/loss")
    assert len(losses["auto"]) == 12
    assert losses["auto"] == pytest.approx(losses[False], abs=1e-13)


class Embedded(nn.Module):
    """Looks up the rounded features, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, FEATURES, sparse=True)
        self.rest = net()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.rest(self.table(features.abs().long().clamp(max=9)))


def test_sparse_gradients_do_without_the_kernel() -> None:
    trainer, _, reporter = fit(toy_config(model__path=Embedded, optimizer__momentum=0.0))
    assert trainer.state.task.model.table.weight.grad.is_sparse
    assert not trainer.optimizer.defaults["fused"]
    losses = reporter.values("train/loss")
    assert losses[-1] < losses[0]


def test_a_run_goes_on_without_the_kernel(tmp_path: Any) -> None:
    """As on another kind of device."""
    whole, *_ = fit(toy_config(optimizer__name="adamw"))
    fit(toy_config(optimizer__name="adamw", trainer__max_steps=5, trainer__epochs=None), checkpoints=tmp_path)
    config = toy_config(optimizer__name="adamw", optimizer__fused=False)
    trainer, _, reporter = fit(config, checkpoints=tmp_path)
    assert [step for step, values in reporter.points if "train/loss" in values] == list(range(6, 13))
    for mine, theirs in zip(trainer.state.task.parameters(), whole.state.task.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
