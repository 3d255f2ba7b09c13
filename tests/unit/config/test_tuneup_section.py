"""The section `tuneup`: which techniques of one's own it takes, and where its problems are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import validate
from paceline.config.loading import load_config
from paceline.errors import Problem
from support.configs import TREE, problems_of

LARGEST = 2**63 - 1
Refuse = Callable[[Any], Problem]


@pytest.mark.parametrize(
    "technique",
    [
        {"optimizer.leanring_rate": 0.2},
        {"nothing": 1},
        {"model.name": "mlp", "model.layers": 3},
        {"scaling.num_workers": 2},
        {"scaling": {"use_gpu": True}},
        {"seed": 3},
        {"storage.path": "/elsewhere"},
        {"model": {"path": print}},
    ],
)
def test_a_technique_that_cannot_be_compared_is_refused(technique: dict[str, Any], refuse: Refuse) -> None:
    assert refuse({**TREE, "tuneup": {"techniques": {"mine": technique}}}).key == "tuneup.techniques.mine"


@pytest.mark.parametrize(
    "technique",
    [
        {"optimizer.lr": 0.2, "scaling.max_failures": 1, "checkpoint.keep": 3},
        {"model.args.width": 3},
        {"model": {"name": "mlp", "in_features": 6, "num_classes": 3}},
        {"model.name": "mlp", "model.in_features": 6, "model.num_classes": 3},
    ],
)
def test_an_technique_may_change_what_is_computed(technique: dict[str, Any]) -> None:
    assert validate({**TREE, "tuneup": {"techniques": {"mine": technique}}}).tuneup is not None


@pytest.mark.parametrize(
    "mistake", ["  techniques:\n    mine: {optimizer.leanring_rate: 0.2}\n", "  skip:\n    - compiel\n"]
)
def test_a_mistake_is_found_in_its_line(write: Callable[..., Path], mistake: str) -> None:
    file = write(f"tuneup:\n{mistake}")
    assert problems_of(load_config, file)[0].place.startswith(f"{file}:6:")


@pytest.mark.parametrize("field", ["only", "skip"])
@pytest.mark.parametrize("name", ["compiel", "loader-3", "fix-daat-1", "mien", "qqq"])
def test_a_name_that_no_technique_has_is_refused_with_the_nearest_one(name: str, field: str, refuse: Refuse) -> None:
    problem = refuse({**TREE, "tuneup": {"techniques": {"mine": {"optimizer.lr": 0.2}}, field: ["bf16", "mine", name]}})
    assert (problem.code, problem.key) == ("unknown-technique", f"tuneup.{field}.2")


def test_the_last_seed_is_a_seed_too(refuse: Refuse) -> None:
    tree = {**TREE, "tuneup": {"seeds": 2}}
    assert validate({**tree, "seed": LARGEST - 1}).seed == LARGEST - 1
    refuse({**tree, "seed": LARGEST})
