"""State of optimizers in nested containers, in their groups and beside the parameters: saved without pickle."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from paceline.engine.optimizer_state import load_optimizer, optimizer_tensors, optimizer_values
from paceline.engine.reporter import MemoryReporter
from paceline.errors import UnusableCode
from support.refusals import refused
from support.toys import fit, fit_in_two, toy_config


class Nested(Optimizer):
    """Momentum whose state is in lists, tuples, mappings, the groups, and under a key that is no parameter."""

    def __init__(self, params: Any, lr: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(params, {"lr": lr, "steps": 0, "mode": "first", "fixed": object()})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        scale = self.state["all"].setdefault("scale", torch.ones(2, dtype=torch.float64))
        scale.mul_(1.01)
        for group in self.param_groups:
            group["steps"] += 1
            group["mode"] = "later"
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["buffers"] = [(torch.zeros_like(parameter, dtype=self.dtype), {"count": 0, "name": "a"})]
                    state["counts.of"] = {0: torch.zeros(3, dtype=torch.int64)}
                    state["counts"] = {"of.0": torch.zeros(1, dtype=torch.uint8)}
                buffer, about = state["buffers"][0]
                about["count"] += 1
                about["name"] += "b"
                state["counts.of"][0] += 1
                state["counts"]["of.0"] += 2
                buffer.mul_(0.9).add_(parameter.grad)
                count = about["count"] + len(about["name"]) + state["counts.of"][0].sum() + state["counts"]["of.0"][0]
                rate = group["lr"] * scale.sum() / (1 + group["steps"] + count)
                parameter.sub_(buffer.to(parameter.dtype) * rate)


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, precision: str) -> None:
    config = toy_config(optimizer={"path": Nested, "lr": 0.1}, trainer__precision=precision)
    if precision == "32-true":
        config = toy_config(
            optimizer={"path": Nested, "lr": 0.1, "args": {"dtype": torch.float64}}, trainer__precision=precision
        )
    whole = fit(config)[1].weights_sha256
    trainer, outcome, _ = fit_in_two(config, tmp_path, 5)
    assert outcome.weights_sha256 == whole
    state = next(iter(trainer.state.optimizer.state.values()))
    assert state["counts"]["of.0"].dtype == torch.uint8
    assert state["buffers"][0][0].dtype == (torch.float32 if precision == "64-true" else torch.float64)


def test_the_state_of_another_precision_takes_the_dtype_of_its_parameter() -> None:
    def stepped(dtype: torch.dtype) -> tuple[torch.nn.Parameter, Optimizer]:
        weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))
        weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        optimizer.step()
        return weight, optimizer

    _, saved = stepped(torch.float64)
    for keeps, dtype in [(True, torch.float64), (False, torch.float32)]:
        weight, other = stepped(torch.float32)
        load_optimizer(other, optimizer_tensors(saved), optimizer_values(saved), keeps_dtypes=keeps)
        assert other.state[weight]["momentum_buffer"].dtype == dtype


def test_options_of_a_group_are_the_configs_unless_the_optimizer_changed_them(tmp_path: Path) -> None:
    config = toy_config(optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    fit(config, checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=5))
    trainer, *_ = fit(config.with_overrides({"optimizer.momentum": 0.5}), checkpoints=tmp_path)
    assert [group["momentum"] for group in trainer.state.optimizer.param_groups] == [0.5]


def test_a_state_that_only_pickle_could_save_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["thing"] = object()
    refusal = refused(UnusableCode, optimizer_values, optimizer)
    assert (refusal.code, refusal.fields["place"]) == ("state-not-saveable", "thing")
