"""Muon against its rule in numpy, and which parameters it leaves to AdamW."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.optimizers._muon import newton_schulz
from paceline.optimizers.muon import MuonConfig

LR, MOMENTUM, DECAY, ADAMW_LR = 0.03, 0.9, 0.1, 0.004


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(6, 4)
        self.conv = nn.Conv2d(2, 9, (1, 2))
        self.wide = nn.Linear(7, 3)
        self.head = nn.Linear(3, 5)


def matrices(model: nn.Module, **fields: Any) -> set[str]:
    """The parameters that take no AdamW steps."""
    optimizer = MuonConfig(name="muon", **fields).build(dict(model.named_parameters()), 0.02, False, model)
    ids = {id(each) for group in optimizer.param_groups if group["is_matrix"] for each in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_embeddings_the_head_and_vectors_are_left_to_adamw() -> None:
    assert matrices(Net()) == {"conv.weight", "wide.weight"}
    assert matrices(Net(), adamw_match="conv|bias") == {"embedding.weight", "wide.weight", "head.weight"}


def test_adamws_rate_follows_the_batch_and_the_groups() -> None:
    rules = [{"match": "head", "lr_multiplier": 0.1}]
    config = MuonConfig.model_validate({"name": "muon", "lr": 0.02, "adamw_lr": 0.001, "param_groups": rules})
    model = Net()
    optimizer = config.build(dict(model.named_parameters()), 0.04, False, model)
    rates = {(group["is_matrix"], round(group["lr"], 9)) for group in optimizer.param_groups}
    assert rates == {(True, 0.04), (False, 0.002), (False, 0.0002)}


def orthogonalized(matrix: Any) -> Any:
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(5):
        product = x @ x.T
        x = 3.4445 * x - 4.7750 * product @ x + 2.0315 * product @ product @ x
    return x


def expected(weight: Any, gradients: list[Any]) -> Any:
    matrix, buffer = weight.reshape(len(weight), -1), 0.0
    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    for gradient in gradients:
        flat = gradient.reshape(matrix.shape)
        buffer = MOMENTUM * buffer + flat
        step = scale * orthogonalized(flat + MOMENTUM * buffer)
        matrix = matrix - LR * DECAY * matrix - LR * step
    return matrix.reshape(weight.shape)


@pytest.mark.parametrize("steps", [1, 10])
def test_muon_follows_its_rule_and_adamw_updates_the_rest(steps: int) -> None:
    model = Net().double()
    config = MuonConfig(name="muon", momentum=MOMENTUM, weight_decay=DECAY, adamw_lr=ADAMW_LR, lr=LR)
    optimizer = config.build(dict(model.named_parameters()), LR, False, model)
    peer = Net().double()
    adamw = torch.optim.AdamW(peer.parameters(), lr=ADAMW_LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    start = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    gradients: dict[str, list[Any]] = {name: [] for name in start}
    for _ in range(steps):
        for (name, parameter), other in zip(model.named_parameters(), peer.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            other.grad = parameter.grad.clone()
            gradients[name].append(parameter.grad.numpy())
        optimizer.step()
        adamw.step()
    for name, parameter in model.named_parameters():
        by_rule = expected(start[name], gradients[name]) if name in ("conv.weight", "wide.weight") else None
        wanted = peer.get_parameter(name) if by_rule is None else torch.from_numpy(by_rule)
        torch.testing.assert_close(parameter.detach(), wanted.detach(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (1, 5)])
def test_singular_values_come_near_1_in_every_dtype(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = newton_schulz(matrix)
    assert (result.dtype, newton_schulz(matrix.half()).dtype) == (torch.float64, torch.float32)
    values = torch.linalg.svdvals(result)
    assert 0.6 < values.min() <= values.max() < 1.3
    torch.testing.assert_close(newton_schulz(matrix.float()).double(), result, rtol=0, atol=1e-4)
    assert torch.equal(newton_schulz(torch.zeros(shape)), torch.zeros(shape))
