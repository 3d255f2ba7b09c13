"""The update rules: what is handed to torch, and how the learning rate follows the batch."""

import pytest
import torch
from torch import nn

from paceline.optimizers.adamw import AdamWConfig
from paceline.optimizers.sgd import SGDConfig


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))]


def test_sgd_takes_every_field() -> None:
    config = SGDConfig(name="sgd", momentum=0.8, nesterov=True, weight_decay=0.01, lr=5.0)
    optimizer = config.build(parameters(), lr=0.3, fused=False)
    assert isinstance(optimizer, torch.optim.SGD)
    (group,) = optimizer.param_groups
    taken = {key: group[key] for key in ("lr", "momentum", "nesterov", "weight_decay")}
    assert taken == {"lr": 0.3, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}
    assert not group["fused"]


def test_adamw_takes_every_field() -> None:
    config = AdamWConfig(name="adamw", beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2, lr=5.0)
    optimizer = config.build(parameters(), lr=0.3, fused=False)
    assert isinstance(optimizer, torch.optim.AdamW)
    (group,) = optimizer.param_groups
    taken = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")}
    assert taken == {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2}


@pytest.mark.parametrize("config", [SGDConfig(name="sgd"), AdamWConfig(name="adamw")], ids=lambda config: config.name)
def test_fused_is_asked_for_only_when_wanted(config: SGDConfig | AdamWConfig) -> None:
    assert config.build(parameters(), lr=0.1, fused=True).param_groups[0]["fused"] is True
    assert not config.build(parameters(), lr=0.1, fused=False).param_groups[0]["fused"]


def test_sgd_steps_as_its_rule_says() -> None:
    (weights,) = held = parameters()
    optimizer = SGDConfig(name="sgd", momentum=0.9, weight_decay=0.1).build(held, lr=0.5, fused=False)
    expected, velocity = weights.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for gradient in (torch.tensor([1.0, 2.0]).double(), torch.tensor([-3.0, 0.5]).double()):
        weights.grad = gradient.clone()
        optimizer.step()
        velocity = 0.9 * velocity + gradient + 0.1 * expected
        expected = expected - 0.5 * velocity
    torch.testing.assert_close(weights.detach(), expected)


def test_adamw_decay_is_decoupled_from_the_gradient() -> None:
    (weights,) = held = parameters()
    before = weights.detach().clone()
    optimizer = AdamWConfig(name="adamw", weight_decay=0.1).build(held, lr=0.5, fused=False)
    weights.grad = torch.tensor([3.0, -7.0], dtype=torch.float64)
    optimizer.step()
    # The first step of Adam is lr times the gradient's sign, whatever its size.
    torch.testing.assert_close(weights.detach(), before * (1 - 0.5 * 0.1) - 0.5 * torch.tensor([1.0, -1.0]).double())


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("none", 1024, 0.2),
        ("linear", 1024, 0.8),
        ("linear", 64, 0.05),
        ("sqrt", 1024, 0.4),
        ("sqrt", 64, 0.1),
        ("linear", 256, 0.2),
    ],
)
def test_the_learning_rate_follows_the_batch(rule: str, batch: int, expected: float) -> None:
    config = SGDConfig.model_validate({"name": "sgd", "lr": 0.2, "lr_scaling": rule, "base_batch_size": 256})
    assert config.scaled_lr(batch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("fields", [{"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"base_batch_size": 0}])
def test_values_outside_their_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        SGDConfig.model_validate({"name": "sgd", **fields})
