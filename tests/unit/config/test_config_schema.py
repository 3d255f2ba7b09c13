"""The JSON Schema says what the loader says, and every field is documented."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from paceline.config.base import Section
from paceline.config.documentation import documentation
from paceline.config.experiment import COMPONENT_SECTIONS, ExperimentConfig, validate
from paceline.config.registry import components
from paceline.config.schema import json_schema
from paceline.config.source import read_text
from support.configs import TREE, problems_of

FILES = sorted((Path(__file__).parents[3] / "configs").rglob("*.yaml"))
EXPERIMENTS = [file for file in FILES if "model" in read_text(file.read_text(), str(file)).tree]


def sections() -> set[type[Section]]:
    """Every section and component, and what they hold."""
    found: set[type[Section]] = set()
    waiting: list[type[Section]] = [ExperimentConfig]
    for package in COMPONENT_SECTIONS.values():
        waiting += components(package).values()
    while waiting:
        cls = waiting.pop()
        if cls not in found:
            found.add(cls)
            waiting += [inner for field in cls.model_fields.values() for inner in _sections_in(field.annotation)]
    return found


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def test_every_field_is_documented() -> None:
    found = sections()
    assert len(found) > 40
    assert [cls for cls in found if not cls.__dict__.get("__doc__")] == []
    without = {cls: [name for name in cls.model_fields if name not in documentation(cls)] for cls in found}
    assert {cls: names for cls, names in without.items() if names} == {}


@pytest.mark.parametrize("section", COMPONENT_SECTIONS)
def test_component_sections_offer_each_component_once(section: str) -> None:
    schema = json_schema()
    variants = schema["properties"][section]["oneOf"]
    classes = {cls.__name__ for cls in components(COMPONENT_SECTIONS[section]).values()}
    assert classes
    assert {variant["$ref"].rpartition("/")[2] for variant in variants} == classes
    for name in classes:
        assert schema["$defs"][name]["description"]
        assert all(field.get("description") for field in schema["$defs"][name]["properties"].values())


def test_the_schema_is_valid_and_has_a_head() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["title"] == "Paceline experiment"
    assert schema["properties"]["trainer"]["description"]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


def test_shipped_configs_are_valid(validator: jsonschema.Draft202012Validator) -> None:
    assert EXPERIMENTS
    for file in EXPERIMENTS:
        validator.validate(read_text(file.read_text(), str(file)).tree)


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"model": {"name": "cnn"}, "optimizer": {"name": "adamw", "lr": 0.001}}, True),
        ({"trainer": {"gradient_accumulation_steps": "auto", "precision": "bf16-mixed"}}, True),
        ({"trainer": {"epoch": 1}}, False),
        ({"trainer": {"epochs": 0}}, False),
        ({"optimizer": {"name": "sgd", "beta1": 0.5}}, False),
        ({"optimizer": {"lr": 0.5}}, False),
        ({"model": "cnn"}, False),
        ({"name": "../run"}, False),
        *(({"scaling": {"num_workers": workers}}, True) for workers in ([2, 4], 3, 0)),
        *(({"scaling": {"num_workers": workers}}, False) for workers in ([0, 4], [2], [1, 2, 3], ["1", 2], "2")),
        ({"sweep": None}, True),
        ({"sweep": {}}, False),
        ({"sweep": {"space": {}}}, False),
        ({"sweep": {"space": {"optimizer.lr": [1]}}}, True),
        ({"sweep": {"space": {"optimizer.lr": {"quniform": [0, 4, 2]}}, "search": "random", "num_samples": 2}}, True),
        ({"sweep": {"space": {"optimizer.lr": []}}}, False),
        ({"sweep": {"space": {"optimizer.lr": {"normal": [0, 1]}}}}, False),
        ({"sweep": {"space": {"optimizer.lr": {"uniform": [0]}}}}, False),
    ],
)
def test_the_schema_agrees_with_the_loader(
    validator: jsonschema.Draft202012Validator, changes: dict[str, Any], valid: bool
) -> None:
    tree = {**TREE, **changes}
    assert validator.is_valid(tree) is valid
    if valid:
        validate(tree)
    else:
        assert problems_of(validate, tree)
