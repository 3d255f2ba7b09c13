"""Schedule-free AdamW against its algorithm with x, y and z written out, and evaluation with the averaged weights."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from paceline.optimizers._modes import evaluation_weights
from paceline.optimizers._schedule_free_adamw import ScheduleFreeAdamW
from support.toys import PointsTask, fit, fit_in_two, toy_config

BETA1, BETA2, EPS, DECAY = 0.8, 0.95, 1e-6, 0.1


def learning_rate(step: int) -> float:
    return 0.02 * min(1.0, (step + 1) / 3)


def gradient(step: int, y: list[float]) -> list[float]:
    """Of a bent bowl, so that it depends on where it is taken."""
    return [(index + 1) * number + 0.3 * number**3 - 0.1 * step for index, number in enumerate(y)]


def by_hand(start: list[float], steps: int) -> tuple[list[float], list[float]]:
    """x and y after some steps."""
    x, z, v, squares = list(start), list(start), [0.0] * len(start), 0.0
    y = list(start)
    for step in range(steps):
        g = gradient(step, y)
        v = [BETA2 * vi + (1 - BETA2) * gi * gi for vi, gi in zip(v, g, strict=True)]
        rate = learning_rate(step) * sqrt(1 - BETA2 ** (step + 1))
        moves = [gi / (sqrt(vi) + EPS) + DECAY * yi for gi, vi, yi in zip(g, v, y, strict=True)]
        z = [zi - rate * move for zi, move in zip(z, moves, strict=True)]
        squares += rate**2
        c = rate**2 / squares
        x = [(1 - c) * xi + c * zi for xi, zi in zip(x, z, strict=True)]
        y = [(1 - BETA1) * zi + BETA1 * xi for zi, xi in zip(z, x, strict=True)]
    return x, y


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_the_optimizer_follows_algorithm_1(steps: int) -> None:
    start = [0.5, -1.0, 2.0, 0.0]
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = ScheduleFreeAdamW([weight], lr=1.0, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY)
    for step in range(steps):
        weight.grad = torch.tensor(gradient(step, weight.tolist()), dtype=torch.float64)
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        optimizer.step()
    x, y = by_hand(start, steps)
    assert weight.tolist() == pytest.approx(y, rel=1e-12, abs=1e-13)
    optimizer.eval()
    optimizer.eval()
    assert weight.tolist() == pytest.approx(x, rel=1e-12, abs=1e-13)
    with pytest.raises(RuntimeError):
        optimizer.step()
    optimizer.train()
    assert weight.tolist() == pytest.approx(y, rel=1e-12, abs=1e-13)


class Recording(PointsTask):
    """Remembers the weights of training and of evaluation."""

    def forward(self, batch: Any) -> Any:
        seen = self.__dict__.setdefault("weights", {True: [], False: []})
        seen[self.training].append(next(self.model.parameters()).detach().clone())
        return super().forward(batch)


OPTIMIZER = {"name": "schedule_free_adamw", "lr": 0.03}


def test_evaluation_uses_x_and_training_continues_at_the_bits_of_y(tmp_path: Path) -> None:
    config = toy_config(optimizer=OPTIMIZER, task={"path": Recording}, trainer__precision="32-true")
    trainer, outcome, _ = fit(config)
    task = trainer.state.task
    weight = next(task.model.parameters())
    x = torch.lerp(weight, trainer.state.optimizer.state[weight]["z"], 1 - 1 / 0.9)
    torch.testing.assert_close(task.weights[False][-1], x)
    assert not torch.equal(x, weight)
    never = config.with_overrides({"trainer.evaluate_every_n_epochs": 0})
    assert fit(never)[1].weights_sha256 == outcome.weights_sha256
    assert fit_in_two(config, tmp_path, 7)[1].weights_sha256 == outcome.weights_sha256


class GroupModes(Optimizer):
    """The convention of facebookresearch/schedule_free: the mode and counters are in the groups."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "train_mode": False, "k": 0})

    @torch.no_grad()
    def _swap(self, mode: bool, sign: float) -> None:
        for group in self.param_groups:
            if group["train_mode"] != mode:
                for parameter in group["params"]:
                    if "z" in self.state[parameter]:
                        parameter.add_(self.state[parameter]["z"], alpha=sign)
                group["train_mode"] = mode

    def eval(self) -> None:
        self._swap(False, 1.0)

    def train(self) -> None:
        self._swap(True, -1.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            for parameter in group["params"]:
                self.state[parameter].setdefault("z", torch.ones_like(parameter)).mul_(0.9)
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["k"])


def test_an_imported_optimizer_with_modes_is_switched_and_resumed(tmp_path: Path) -> None:
    config = toy_config(optimizer={"path": GroupModes, "lr": 0.1}, trainer__precision="32-true")
    whole = fit(config)[1].weights_sha256
    trainer, outcome, _ = fit_in_two(config, tmp_path, 7)
    assert outcome.weights_sha256 == whole
    assert [group["k"] for group in trainer.state.optimizer.param_groups] == [12]
    weight = next(trainer.state.task.model.parameters())
    before = weight.detach().clone()
    with evaluation_weights(trainer.state.optimizer):
        assert not torch.equal(weight, before)
    assert torch.equal(weight, before)
