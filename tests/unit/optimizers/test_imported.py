"""Optimizers and schedules by import path: how they are called, and what they must return."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from paceline import Callback, TrainContext
from paceline.config.loading import missing_modules
from paceline.config.registry import components
from paceline.engine.build import build_optimizer
from paceline.errors import ConfigError, UnusableCode
from support.refusals import refused
from support.toys import PointsTask, fit, net, toy_config


def test_a_torch_optimizer_trains_like_by_hand() -> None:
    config = toy_config(optimizer={"path": "torch.optim:Adamax", "lr": 0.02, "args": {"betas": [0.8, 0.99]}})
    trainer, _, reporter = fit(config)
    optimizer = trainer.state.optimizer
    assert isinstance(optimizer, torch.optim.Adamax)
    assert optimizer.param_groups[0]["betas"] == [0.8, 0.99]
    losses = reporter.values("train/loss")
    assert losses[-1] < losses[0]
    assert reporter.values("lr") == [0.02] * 12


def groups(**optimizer: Any) -> list[tuple[int, Any]]:
    """Number of parameters and decay of each group that the callable is given."""
    seen: list[Any] = []

    def build(param_groups: list[dict[str, Any]], lr: float) -> Optimizer:
        seen.extend((len(group["params"]), group.get("weight_decay")) for group in param_groups)
        return torch.optim.AdamW(param_groups, lr=lr)

    config = toy_config(optimizer={"path": build, **optimizer})
    build_optimizer(config, PointsTask(net()), 0.1, torch.device("cpu"))
    return seen


def test_the_decay_is_in_the_groups_if_it_is_set() -> None:
    exclude = {"weight_decay_exclude": "norms_and_biases"}
    assert groups() == [(4, None)]
    assert groups(weight_decay=0.2) == [(4, 0.2)]
    assert groups(weight_decay=0.2, **exclude) == [(2, 0.2), (2, 0.0)]
    assert groups(**exclude) == [(2, None), (2, 0.0)]
    assert groups(param_groups=[{"match": "^1", "weight_decay": 0.1}]) == [(2, None), (2, 0.1)]


def decaying_by_layer(param_groups: list[dict[str, Any]], lr: float) -> Optimizer:
    """Sets a rate for each layer, as timm's layer decay does; that of the first is 0."""
    (group,) = param_groups
    first, last = group["params"][:2], group["params"][2:]
    return torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": last, "lr": lr / 2}], lr=lr)


def test_a_rate_that_the_builder_gives_a_group_keeps_its_ratio_to_the_schedule() -> None:
    config = toy_config(optimizer={"path": decaying_by_layer, "lr": 0.1}, lr_scheduler={"name": "linear"})
    trainer, *_ = fit(config)
    assert [group["lr"] for group in trainer.state.optimizer.param_groups] == pytest.approx([0.0, 0.1 / 2 / 12])
    model = trainer.state.task.model
    start = fit(config.with_overrides({"trainer.max_steps": 1, "trainer.epochs": None, "optimizer.lr": 1e-30}))[0]
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, start.state.task.model.get_parameter(key)) == key.startswith("0"), key


def leaving_out(param_groups: list[dict[str, Any]], lr: float) -> Optimizer:
    return torch.optim.SGD(param_groups[0]["params"][:2], lr=lr)


def test_parameters_that_an_optimizer_leaves_out_are_named() -> None:
    for path, count in ((leaving_out, 1), (torch.optim.SGD, 0)):
        events = fit(toy_config(optimizer={"path": path, "lr": 0.1}))[2].events
        warnings = [details for _, details in events if details.get("code") == "untrained-parameters"]
        assert len(warnings) == count
        assert all("1.weight" in details["message"] for details in warnings)


class Adding(Callback):
    """Adds a parameter group in mid-training."""

    def on_step_end(self, ctx: TrainContext) -> None:
        if ctx.step == 2:
            ctx.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, dtype=torch.float64))]})


def test_groups_that_are_added_in_training_are_refused() -> None:
    refusal = refused(UnusableCode, fit, toy_config(callbacks=[{"path": Adding}]))
    assert (refusal.code, refusal.fields["before"], refusal.fields["now"]) == ("parameter-groups-changed", 1, 2)


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


def with_a_foreign_parameter(param_groups: Any, lr: float) -> Optimizer:
    return torch.optim.SGD([*param_groups, {"params": [nn.Parameter(torch.ones(1))]}], lr=lr)


def without_rates(param_groups: Any, lr: float) -> Optimizer:
    optimizer = torch.optim.SGD(param_groups, lr=lr)
    optimizer.param_groups[0]["lr"] = None
    return optimizer


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (lambda param_groups, lr: param_groups, "not-an-optimizer"),
        (with_a_foreign_parameter, "foreign-parameters"),
        (without_rates, "no-learning-rate"),
        (NeedsClosure, "closure-required"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_refused(path: Any, code: str) -> None:
    refusal = refused(
        UnusableCode, build_optimizer, toy_config(optimizer={"path": path}), PointsTask(net()), 0.1, torch.device("cpu")
    )
    assert refusal.code == code


def test_the_learning_rate_is_a_field_and_no_argument() -> None:
    refusal = refused(ConfigError, toy_config, optimizer={"path": "torch.optim:RAdam", "args": {"lr": 0.1}})
    assert [(problem.code, problem.key) for problem in refusal.problems] == [("bad-value", "optimizer.args")]


@pytest.mark.parametrize(
    ("section", "value", "found"),
    [
        ("optimizer", {"path": "torch.optim:RAdam"}, []),
        ("optimizer", {"path": with_a_foreign_parameter, "args": {"beta": 1}}, ["unknown-key"]),
        ("optimizer", {"path": "torch.optim:NoSuch"}, ["import"]),
        ("lr_scheduler", {"path": lambda step, total, power: 1.0}, ["missing-key"]),
        ("lr_scheduler", {"path": lambda step, total, power: 1.0, "args": {"power": 2}}, []),
    ],
)
def test_arguments_are_checked_without_a_call(section: str, value: dict[str, Any], found: list[str]) -> None:
    assert [problem.code for problem in missing_modules({section: value})] == found


def schedule(function: Callable[..., Any], **args: Any) -> Callable[[int], float]:
    cls = components("paceline.lr_schedulers")["path"]
    config = cls.model_validate({"path": function, "args": args, "warmup_steps": 2})
    return config.build(6, 2, 1.0)  # type: ignore[attr-defined, no-any-return]


def test_a_schedule_is_called_with_steps_after_the_warmup() -> None:
    def falling(step: int, total_steps: int, power: float) -> float:
        return (1 - step / total_steps) ** power

    factor = schedule(falling, power=2.0)
    assert [factor(step) for step in range(6)] == [0.5, 1.0, 1.0, 0.5625, 0.25, 0.0625]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, None, "1", True, 10**400])
def test_a_factor_that_is_no_finite_number_is_refused(value: Any) -> None:
    factor = schedule(lambda step, total_steps: value if step == 3 else 1.0)
    assert [factor(step) for step in range(5)] == [0.5, 1.0, 1.0, 1.0, 1.0]
    refusal = refused(UnusableCode, factor, 5)
    assert (refusal.code, refusal.fields["step"]) == ("bad-lr-factor", 3)
