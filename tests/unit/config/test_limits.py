"""Every number of a config has bounds, and within them everything that follows from it can be computed."""

from collections.abc import Iterator
from itertools import pairwise
from math import inf, isfinite, nan
from typing import Any, get_args, get_origin

import pytest

from paceline.config.base import Component, Section
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import COMPONENT_SECTIONS, ExperimentConfig, validate
from paceline.config.imports import Called
from paceline.config.registry import components
from paceline.config.schema import json_schema
from paceline.errors import ConfigError
from support.configs import TREE

SWEEP = {"space": {"optimizer.lr": [0.1]}, "search": "random", "num_samples": 2}
FAR_OUT = [1e308, -1e308, 10**30, -(10**30), 10**400, -1, nan, inf, -inf]
SMALL = [0, 0.0, 1e-300, 5e-324, -5e-324]
"""May be right or wrong, depending on the field."""
MAY_BE_NEGATIVE = [("sweep", "stop", "target"), ("task", "ignore_index")]
WITHIN = [1, 0.001, 0.999, 1024, 4096, 65_536, 10**6, 1e6, 10**7, 2**31 - 1, 10**12, 10**15, 1e20, 2**63 - 1]


ITEM = "0"
"""Part of a key that stands for the first item of a list of sections."""
REQUIRED_IN_ITEMS = {
    "param_groups": {"match": "x"},
    "batch_size_schedule": {"samples": 0, "global_batch_size": 64},
}
MUST_BE_ZERO = [("data", "batch_size_schedule", ITEM, "samples")]
"""The first stage begins there."""


def numbers_in(cls: type[Section], key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Key of each field of a section that may hold a number, and whether in a list."""
    for name, field in cls.model_fields.items():
        parts = list(parts_of(field.annotation))
        if any(get_origin(part) is dict for part in parts):
            continue  # axes of sweeps have tests of their own
        for part in parts:
            if isinstance(part, type) and issubclass(part, Section) and not issubclass(part, Component):
                is_item = any(get_origin(each) is list and part in get_args(each) for each in parts)
                yield from numbers_in(part, (*key, name, *([ITEM] if is_item else [])))
        if int in parts or float in parts:
            yield (*key, name), any(getattr(part, "__origin__", part) is list for part in parts)


def parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


def smallest(cls: type[Component]) -> dict[str, Any]:
    """What a component's section must hold."""
    chosen = {"name": cls.selectors()[0]} if cls.selectors() else {"path": "own_nets:build"}
    texts = {name: "x" for name, field in cls.model_fields.items() if field.is_required()}
    return {**texts, **chosen}


def cases() -> Iterator[Any]:
    for key, listed in numbers_in(ExperimentConfig, ()):
        yield pytest.param({"sweep": SWEEP} if key[0] == "sweep" else {}, key, listed, id=".".join(key))
    for section, package in COMPONENT_SECTIONS.items():
        for cls in dict.fromkeys(components(package).values()):
            for key, listed in numbers_in(cls, (section,)):
                yield pytest.param({section: smallest(cls)}, key, listed, id=f"{cls.__name__}.{'.'.join(key[1:])}")


def tree_with(sections: dict[str, Any], key: tuple[str, ...], value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {**TREE, **{name: dict(fields) for name, fields in sections.items()}}
    inner = tree
    for part, after in pairwise(key):
        if part == ITEM:
            continue
        found = inner.setdefault(part, [dict(REQUIRED_IN_ITEMS.get(part, {}))] if after == ITEM else {})
        inner = found[0] if after == ITEM else found
    inner[key[-1]] = value
    return tree


def work_out(tree: dict[str, Any]) -> bool:
    """Whether a config is good; then all that follows from it is finite."""
    try:
        config = validate(tree)
        known = derive(config, Sizes(4000, 1000))
        everything = [known, derive(config, None), derive(config, config.data.sizes())]
    except ConfigError:
        return False
    assert all(isfinite(derived.lr) and derived.lines() for derived in everything)
    assert known.total_steps is not None
    assert known.warmup_steps is not None
    assert known.steps_per_epoch is not None
    if isinstance(config.lr_scheduler, Called):
        return True  # the factor is the user's
    schedule = config.lr_scheduler.build(known.total_steps, known.warmup_steps, known.steps_per_epoch)
    assert all(0 <= schedule(step) <= 1 for step in (0, known.warmup_steps, known.total_steps - 1))
    return True


@pytest.mark.parametrize(("sections", "key", "listed"), list(cases()))
def test_any_number_is_refused_or_works(sections: dict[str, Any], key: tuple[str, ...], listed: bool) -> None:
    def works(value: Any) -> bool:
        return work_out(tree_with(sections, key, [value] if listed else value))

    worked = [value for value in [*FAR_OUT, *SMALL, *WITHIN] if works(value)]
    assert not set(worked) & (set(FAR_OUT) - ({-1} if key in MAY_BE_NEGATIVE else set()))
    assert set(worked) & ({0} if key in MUST_BE_ZERO else set(WITHIN))


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "step", "warmup_stable_decay"])
@pytest.mark.parametrize("warmup", [0.0, 1e6])
@pytest.mark.parametrize(
    ("batch", "workers"), [({"global_batch_size": 2**31 - 1}, 0), ({"micro_batch_size": 1}, 65_536)]
)
def test_the_bounds_work_together(schedule: str, warmup: float, batch: dict[str, int], workers: int) -> None:
    more = {"step": {"every_n_epochs": 0.001, "gamma": 5e-324}}.get(schedule, {})
    assert work_out(
        {
            **TREE,
            "data": {"name": "synthetic", "shape": [1], "num_samples": 2**31 - 1, **batch},
            "optimizer": {"name": "sgd", "lr": 1e6, "lr_scaling": "linear", "base_batch_size": 1},
            "lr_scheduler": {"name": schedule, "warmup_epochs": warmup, **more},
            "trainer": {"epochs": 10**6, "max_steps": 10**12},
            "scaling": {"num_workers": workers},
        }
    )


def unbounded(schema: Any, key: str = "") -> Iterator[str]:
    """Keys of the schema's numbers that lack a lower or an upper bound."""
    if isinstance(schema, list):
        for item in schema:
            yield from unbounded(item, key)
    elif isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            if not ({"minimum", "exclusiveMinimum"} & set(schema) and {"maximum", "exclusiveMaximum"} & set(schema)):
                yield key
            return
        for name, item in schema.items():
            yield from unbounded(item, f"{key}.{name}" if name not in ("properties", "$defs") else key)


def test_the_schema_has_both_bounds_of_every_number() -> None:
    assert list(unbounded(json_schema())) == []
