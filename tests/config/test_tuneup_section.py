"""The section `tuneup`: which techniques of one's own it takes, and where its problems are found."""

from pathlib import Path
from typing import Any

import pytest

from paceline.config.loading import load_config, validate
from paceline.errors import ConfigError, Problem

TREE: dict[str, Any] = {"name": "run", "model": {"path": "own_nets:build"}, "data": {"path": "own_nets:data"}}
LARGEST = 2**63 - 1


def problems_of(arm: dict[str, Any], **fields: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        validate({**TREE, **fields, "tuneup": {"arms": {"mine": arm}}})
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        ({"optimizer.leanring_rate": 0.2}, "there is no such key as optimizer.leanring_rate"),
        ({"nothing": 1}, "there is no such key as nothing"),
        ({"model.name": "mlp", "model.layers": 3}, "there is no such key as model.layers"),
        ({"scaling.num_workers": 2}, "scaling.num_workers needs other workers"),
        ({"scaling": {"use_gpu": True}}, "scaling needs other workers"),
        ({"seed": 3}, "seed does not change how a training is computed"),
        ({"storage.path": "/elsewhere"}, "storage does not change how a training is computed"),
        ({"tuneup.seeds": 3}, "tuneup does not change how a training is computed"),
        ({"model.path": print}, "model.path is a Python object"),
        ({"model": {"path": print}}, "model is a Python object"),
    ],
)
def test_an_arm_that_cannot_be_compared_is_refused_before_anything_starts(arm: dict[str, Any], reason: str) -> None:
    (problem,) = problems_of(arm)
    assert problem.key == "tuneup.arms.mine"
    assert reason in problem.reason
    assert problem.hint


@pytest.mark.parametrize(
    "arm",
    [
        {"optimizer.lr": 0.2, "scaling.max_failures": 1, "checkpoint.keep": 3},
        {"model.args.width": 3},
        {"model": {"name": "mlp", "in_features": 6, "num_classes": 3}},
        {"model.name": "mlp", "model.in_features": 6, "model.num_classes": 3},
    ],
)
def test_an_arm_may_change_what_is_computed(arm: dict[str, Any]) -> None:
    assert validate({**TREE, "tuneup": {"arms": {"mine": arm}}}).tuneup is not None


def test_a_wrong_arm_is_found_in_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: run\nmodel: {name: mlp, in_features: 6, num_classes: 3}\n"
        "data: {name: mnist5k}\ntuneup:\n  arms:\n    mine: {optimizer.leanring_rate: 0.2}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert "run.yaml:6" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("compiel", "did you mean compile?"),
        ("torch compile", "did you mean compile?"),
        ("loader-3", "did you mean loader-"),
        ("fix-daat-1", "did you mean fix-data-1?"),
        ("fix-data-0", "did you mean fix-data-1?"),
        ("mien", "did you mean mine?"),
        ("qqq", "known here: mine, loader-1, "),
    ],
)
def test_a_name_to_skip_that_no_technique_has_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate({**TREE, "tuneup": {"arms": {"mine": {"optimizer.lr": 0.2}}, "skip": ["bf16", name]}})
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("unknown-technique", "tuneup.skip.1")
    assert name in problem.reason
    assert hint in problem.hint


def test_a_misspelt_name_to_skip_is_found_in_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    model = "model: {name: mlp, in_features: 6, num_classes: 3}"
    file.write_text(f"name: run\n{model}\ndata: {{name: mnist5k}}\ntuneup:\n  skip:\n    - bf16\n    - compiel\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:7"):
        load_config(file)


def test_the_last_seed_is_a_seed_too() -> None:
    tree = {**TREE, "tuneup": {"seeds": 2}}
    assert validate({**tree, "seed": LARGEST - 1}).seed == LARGEST - 1
    with pytest.raises(ConfigError, match="the last of 2 seeds"):
        validate({**tree, "seed": LARGEST})
