"""Settings of some parameters by their names: learning rates, decay, and patterns that match nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine.build import build_optimizer
from paceline.errors import ConfigError
from support.refusals import refused
from support.toys import PointsTask, fit, net, toy_config

SHIPPED = ["sgd", "adamw", "lars", "lamb", "nvlamb", "novograd", "schedule_free_adamw"]


def groups(**optimizer: Any) -> dict[str, tuple[float, float]]:
    """Learning rate and decay of each parameter of the toy model, by name."""
    model = net()
    config = toy_config(optimizer={"name": "sgd", "lr": 0.1, **optimizer})
    built = build_optimizer(config, PointsTask(model), 0.1, torch.device("cpu"))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (pytest.approx(group["lr"]), group["weight_decay"])
        for group in built.param_groups
        for parameter in group["params"]
    }


def test_the_first_match_counts_and_the_rest_keeps_the_sections_settings() -> None:
    rules = [{"match": "^0", "lr_multiplier": 0.5}, {"match": "weight", "lr_multiplier": 9.0, "weight_decay": 0.3}]
    assert groups(weight_decay=0.01, param_groups=rules) == {
        "0.0.weight": (0.05, 0.01),
        "0.0.bias": (0.05, 0.01),
        "1.weight": (0.9, 0.3),
        "1.bias": (0.1, 0.01),
    }


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_excluded_parameters_decay_in_no_group(decay: float) -> None:
    rules = [{"match": "^1", "weight_decay": 0.3}]
    assert groups(weight_decay=decay, param_groups=rules, weight_decay_exclude="norms_and_biases") == {
        "0.0.weight": (0.1, decay),
        "0.0.bias": (0.1, 0.0),
        "1.weight": (0.1, 0.3),
        "1.bias": (0.1, 0.0),
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_groups_follow_the_schedule_and_a_multiplier_of_0_freezes(name: str) -> None:
    config = toy_config(
        optimizer={
            "name": name,
            "lr": 0.01,
            "weight_decay": 0.1,
            "param_groups": [{"match": "^0", "lr_multiplier": 0}, {"match": "bias", "lr_multiplier": 0.5}],
        },
        lr_scheduler={"name": "linear"},
        trainer__max_steps=4,
    )
    torch.manual_seed(config.seed)
    trainer, *_ = fit(config)
    rates = sorted(group["lr"] for group in trainer.state.optimizer.param_groups)
    assert rates == pytest.approx([0.0, 0.00125, 0.0025])
    model = trainer.state.task.model
    start = fit(config.with_overrides({"trainer.max_steps": 1, "optimizer.lr": 1e-30}))[0].state.task.model
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, start.get_parameter(key)) == key.startswith("0"), key


class OwnScale(PointsTask):
    """A task with a parameter of its own, of a name that the model has too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.scale = nn.Parameter(torch.ones(1))
        model.scale = nn.Parameter(torch.ones(1))


def test_parameters_of_the_task_are_matched_too_and_none_is_lost() -> None:
    config = toy_config(optimizer={"name": "sgd", "param_groups": [{"match": "^scale$", "lr_multiplier": 2.0}]})
    task = OwnScale(net())
    optimizer = build_optimizer(config, task, 0.1, torch.device("cpu"))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 5]
    assert optimizer.param_groups[0]["params"][0] is task.scale


def test_a_pattern_without_a_match_names_near_parameters() -> None:
    (problem,) = refused(ConfigError, groups, param_groups=[{"match": "weight"}, {"match": "^2.wieght"}]).problems
    assert (problem.code, problem.key) == ("no-such-parameters", "optimizer.param_groups.1.match")
    assert "1.weight" in problem.hint
