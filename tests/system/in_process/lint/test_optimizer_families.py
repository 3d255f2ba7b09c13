"""Which rules of the learning rate and the decay apply to which optimizer."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from paceline.config.registry import components
from paceline.linting.rules import learning
from support.toys import toy_config

NO_LAW = ("muon", "novograd")
FAMILIES = {"sgd": {"sgd"}, "adam": {"adamw", "lamb", "nvlamb", "schedule_free_adamw"}}
SCALES_LAYERS = {"lars", "lamb", "nvlamb"}
HIGHEST = {"sgd": 10.0, "adamw": 0.1}
SHIPPED = [*FAMILIES["sgd"], *sorted(FAMILIES["adam"]), "lars", *NO_LAW]


def found(rule: Any, name: str, growth: float = 4.0, **fields: Any) -> bool:
    """Whether a rule finds a fault of an optimizer, at so many times its base batch."""
    config = toy_config(optimizer={"name": name, "lr": 0.01, **fields})
    subject: Any = SimpleNamespace(config=config, growth=growth, task=nn.Sequential(nn.BatchNorm1d(3)))
    return bool(list(rule(subject)))


def test_each_optimizer_is_listed() -> None:
    assert {*SHIPPED, "path"} == set(components("paceline.optimizers"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_law_of_the_batch_size_is_that_of_the_family(name: str) -> None:
    assert found(learning.linear_rule_with_adam, name, lr_scaling="linear") == (name in FAMILIES["adam"])
    assert found(learning.sqrt_rule_with_sgd, name, lr_scaling="sqrt") == (name in FAMILIES["sgd"])


@pytest.mark.parametrize("name", SHIPPED)
def test_norms_should_not_decay_where_steps_follow_the_norm_of_a_layer(name: str) -> None:
    assert found(learning.large_batch_decays_norms, name, weight_decay=0.1) == (name in SCALES_LAYERS)
    assert found(learning.large_batch_decays_norms, name, growth=8.0, weight_decay=0.1)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_learning_rate_is_too_high_where_one_is_known_to_be(name: str) -> None:
    highest = HIGHEST.get(name, inf)
    assert found(learning.learning_rate_too_high, name, lr=min(1.01 * highest, 1e6)) == (highest < inf)
    assert not found(learning.learning_rate_too_high, name, lr=min(highest, 1e6))
