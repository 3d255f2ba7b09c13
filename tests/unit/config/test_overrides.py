"""Overrides: how they are read, what they change, and switching from one component to another."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.loading import load_config
from paceline.config.overrides import ConfigWarning, apply_overrides, parse_override
from support.configs import problems_of
from support.golden import Golden

Write = Callable[..., Path]


def build(depth: int = 1) -> None:
    """Stands for a user's own component, given as a Python object."""


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("trainer.epochs=3", "trainer.epochs", 3),
        ("optimizer.lr=1e-3", "optimizer.lr", 0.001),
        ("trainer.deterministic=true", "trainer.deterministic", True),
        ("x=off", "x", "off"),
        ("x=~", "x", None),
        ("x=", "x", None),
        ("x='5'", "x", "5"),
        ("x=a=b", "x", "a=b"),
        ("x=2024-01-01", "x", "2024-01-01"),
        ("x=[1, 2.5, a]", "x", [1, 2.5, "a"]),
        ("model={name: resnet18, num_classes: 10}", "model", {"name": "resnet18", "num_classes": 10}),
        ("storage.path=s3://bucket/a:b", "storage.path", "s3://bucket/a:b"),
    ],
)
def test_values_are_read_as_in_the_file(text: str, key: str, value: Any) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize(
    "text", ["", "trainer.epochs", "=3", "a..b=3", "a b=3", "--seed=3", "seed: 3", "a" + 5000 * ".a" + "=1"]
)
def test_what_is_no_override_is_refused(text: str) -> None:
    (problem,) = problems_of(parse_override, text)
    assert (problem.code, problem.place) == ("bad-override", f"override {text[:80]!r}")


def test_a_bad_value_names_the_override() -> None:
    (problem,) = problems_of(parse_override, "trainer={epochs: 1, epochs: 2}")
    assert (problem.code, problem.key) == ("duplicate-key", "trainer.epochs")
    assert problem.place == "override 'trainer={epochs: 1, epochs: 2}'"


def test_the_tree_is_copied_but_not_the_callables_in_it() -> None:
    tree = {"trainer": {"epochs": 1}, "model": {"path": build, "args": {"sizes": [1]}}}
    changed = apply_overrides(tree, {"trainer.epochs": 2, "model.args.width": 3})
    changed["model"]["args"]["sizes"].append(2)
    assert tree == {"trainer": {"epochs": 1}, "model": {"path": build, "args": {"sizes": [1]}}}
    assert changed["trainer"] == {"epochs": 2}
    assert changed["model"]["path"] is build
    assert changed["model"]["args"] == {"sizes": [1, 2], "width": 3}


def test_missing_sections_are_made_and_missing_components_begin_as_their_default() -> None:
    assert apply_overrides({}, {"trainer.epochs": 2}) == {"trainer": {"epochs": 2}}
    assert apply_overrides({"trainer": None}, {"trainer.epochs": 2}) == {"trainer": {"epochs": 2}}
    assert apply_overrides({}, {"optimizer.lr": 2.0}) == {"optimizer": {"name": "sgd", "lr": 2.0}}
    assert apply_overrides({}, {"optimizer.name": "adamw"}) == {"optimizer": {"name": "adamw"}}


def test_a_section_is_replaced_as_a_whole() -> None:
    tree = {"model": {"path": "a:b", "args": {"width": 1}}}
    with warnings.catch_warnings(action="error"):
        changed = apply_overrides(tree, {"model.num_classes": 10, "model": {"name": "resnet18"}})
    assert changed == {"model": {"name": "resnet18", "num_classes": 10}}


def test_switching_drops_what_the_new_component_lacks() -> None:
    tree = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}}
    with pytest.warns(ConfigWarning, match="optimizer.name=adamw: dropped momentum, nesterov") as caught:
        changed = apply_overrides(tree, {"optimizer.name": "adamw"})
    assert changed == {"optimizer": {"name": "adamw", "lr": 0.1}}
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert apply_overrides(tree, {"optimizer.name": "sgd"}) == tree


def test_keys_that_are_overridden_too_are_not_dropped(write: Write) -> None:
    file = write("optimizer: {name: sgd, lr: 0.1}\n")
    (problem,) = problems_of(load_config, file, ["optimizer.momentum=0.5", "optimizer.name=adamw"])
    assert (problem.code, problem.key) == ("unknown-key", "optimizer.momentum")
    assert problem.place == "override 'optimizer.momentum=0.5'"


def test_switching_between_name_and_path(write: Write) -> None:
    with pytest.warns(ConfigWarning, match="dropped args"):
        config = load_config(write("task: {path: 'own_nets:build', args: {a: 1}}\n"), ["task.name=classification"])
    assert config.task.model_dump(exclude_defaults=True) == {"name": "classification"}

    file = write("task: {name: classification, label_smoothing: 0.1}\n")
    with pytest.warns(ConfigWarning, match="dropped label_smoothing"):
        config = load_config(file, {"task.path": build, "task.args.depth": 2})
    assert config.task.model_dump() == {"path": build, "args": {"depth": 2}}


def test_switching_an_optimizer_to_a_path(write: Write) -> None:
    file = write("optimizer: {name: sgd, lr: 0.2, momentum: 0.9}\n")
    with pytest.warns(ConfigWarning, match="dropped momentum"):
        config = load_config(file, ["optimizer.path=torch.optim:RAdam", "optimizer.args.eps=0.001"])
    section = {"path": "torch.optim:RAdam", "args": {"eps": 0.001}, "lr": 0.2}
    assert config.optimizer.model_dump(exclude_unset=True) == section


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("trainer.epoch=3", "unknown-key", "trainer.epoch"),
        ("trainer.epochs.x=3", "unknown-key", "trainer.epochs.x"),
        ("nonsense.x=3", "unknown-key", "nonsense"),
        ("optimizer.name=adamv", "unknown-component", "optimizer.name"),
    ],
)
def test_an_unknown_name_is_refused(override: str, code: str, key: str, write: Write, golden: Golden) -> None:
    (problem,) = problems_of(load_config, write("optimizer: {name: sgd, momentum: 0.9}\n"), [override])
    assert (problem.code, problem.key, problem.place) == (code, key, f"override '{override}'")
    golden(str(problem))


def test_problems_of_the_file_come_before_those_of_overrides(write: Write) -> None:
    found = problems_of(load_config, write("seed: -1\n"), ["trainer.epochs=x", "oops", "tracking.uri=3"])
    assert [problem.place.rpartition("/")[2] for problem in found] == [
        "run.yaml:4:1",
        "override 'trainer.epochs=x'",
        "override 'tracking.uri=3'",
        "override 'oops'",
    ]


def test_values_from_python_have_no_place(write: Write) -> None:
    assert problems_of(load_config, write("seed: 1\n"), {"seed": -1})[0].place == ""


def test_with_overrides_validates_again(write: Write) -> None:
    config = load_config(write("optimizer: {name: sgd, lr: 0.5}\n"))
    changed = config.with_overrides({"trainer.precision": "bf16-mixed", "optimizer.weight_decay": 0.1})
    assert config.trainer.precision == "32-true"
    assert changed.trainer.precision == "bf16-mixed"
    assert (changed.optimizer.lr, changed.optimizer.weight_decay) == (0.5, 0.1)
    assert problems_of(config.with_overrides, {"trainer.precision": "bf16"})


def test_with_overrides_switches_to_the_new_component_and_its_defaults(write: Write) -> None:
    with warnings.catch_warnings(action="error"):
        config = load_config(write()).with_overrides({"optimizer.name": "adamw"})
    assert config.optimizer.lr == 0.001


def test_with_overrides_keeps_python_objects(write: Write) -> None:
    config = load_config(write()).with_overrides({"model": {"path": build, "args": {"object": build}}})
    again = config.with_overrides({"seed": 3})
    assert again.model.model_dump(exclude_defaults=True) == {"path": build, "args": {"object": build}}
