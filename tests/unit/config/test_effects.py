"""Declarations of what leaves a field without effect."""

from typing import Annotated, Any

import pytest

from paceline.config.base import Section
from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.effects import NotWith, OnlyWith
from paceline.config.experiment import ExperimentConfig
from paceline.config.ignored import ignored_settings
from paceline.config.registry import components
from paceline.config.sections import CheckpointConfig, ParallelConfig, ScalingConfig, TrainerConfig
from paceline.config.sweep import SweepConfig
from support.configs import config_of

SECTIONS: dict[str, list[type[Section]]] = {
    "trainer": [TrainerConfig],
    "parallel": [ParallelConfig],
    "scaling": [ScalingConfig],
    "checkpoint": [CheckpointConfig],
    "sweep": [SweepConfig],
    **{section: list(components(room).values()) for section, room in COMPONENT_SECTIONS.items()},
}


def fields_of(section: str) -> set[str]:
    return {field for each in SECTIONS[section] for field in each.model_fields}


def declared_keys() -> list[str]:
    classes = [each for section in SECTIONS.values() for each in section]
    infos = [info for each in classes for info in each.model_fields.values()]
    of_fields = [mark.key for info in infos for mark in info.metadata if isinstance(mark, OnlyWith | NotWith)]
    return [*of_fields, *(key for each in classes for key in getattr(each, "no_effect", {}))]


def test_declarations_name_fields_that_exist() -> None:
    keys = declared_keys()
    assert len(set(keys)) > 8
    for key in keys:
        section, _, field = key.partition(".")
        assert field in fields_of(section), key


@pytest.mark.parametrize(
    ("mark", "value", "has_effect"),
    [
        (OnlyWith("a.b", "x"), "x", True),
        (OnlyWith("a.b", "x"), "y", False),
        (OnlyWith("a.b", "x", "y"), "y", True),
        (OnlyWith("a.b", False), 0, False),
        (NotWith("a.b", 0), 0, False),
        (NotWith("a.b", 0), False, True),
        (NotWith("a.b", None), None, False),
        (NotWith("a.b", None), "x", True),
    ],
)
def test_a_field_is_read_or_not(mark: Any, value: Any, has_effect: bool) -> None:
    assert (mark.reason(value) == "") == has_effect


def test_a_declaration_beside_a_new_field_is_all_that_a_warning_takes() -> None:
    class Trainer(TrainerConfig):
        decay_shape: Annotated[str, OnlyWith("parallel.strategy", "fsdp")] = "flat"

    class Experiment(ExperimentConfig):
        trainer: Trainer = Trainer()

    plain = config_of().model_dump()
    for strategy, warns in (("ddp", True), ("fsdp", False)):
        tree = {**plain, "trainer": {**plain["trainer"], "decay_shape": "round"}}
        tree["parallel"] = {**plain["parallel"], "strategy": strategy}
        tree["scaling"] = {**plain["scaling"], "num_workers": 2}
        found = [text for text in ignored_settings(Experiment.model_validate(tree)) if "decay_shape" in text]
        assert bool(found) == warns
