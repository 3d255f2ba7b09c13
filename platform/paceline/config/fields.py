"""Finds the class and the fields behind a key of the config tree, for messages and overrides."""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from paceline.config.base import Component, Section
from paceline.config.components import COMPONENT_LISTS, COMPONENT_SECTIONS, ROOMS, is_component
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.hints import nearest
from paceline.config.metric import MetricConfig
from paceline.config.registry import BY_PATH, components
from paceline.config.source import Key, dotted


def chosen_class(section: str, value: Any) -> type[Component] | None:
    """Return the class that a component chooses by its `name` or `path`; None if it chooses none.

    Args:
        section: the component's section, or the list that contains it.
    """
    if section == "metrics":
        return MetricConfig
    if isinstance(value, Component):
        return type(value)
    if not isinstance(value, Mapping):
        return None
    known = components(ROOMS[section])
    if "name" in value:
        return known[value["name"]] if value["name"] in component_names(section) else None
    return known.get(BY_PATH) if "path" in value else None


def component_names(section: str) -> list[str]:
    """Return every value that `name` may have in a component section."""
    return sorted(name for name in components(ROOMS[section]) if name != BY_PATH)


def default_name(section: str) -> str | None:
    """Return the default component of a section; None if the section is required."""
    field = ExperimentSchema.model_fields[section]
    if field.is_required():
        return None
    return str(field.get_default(call_default_factory=True).name)


def section_class(tree: Any, key: Key) -> type[Section] | None:
    """Return the class of the section at a key; None if the key has no section, or its class is not known."""
    if not key:
        return ExperimentSchema
    if len(key) == 1 and key[0] in COMPONENT_SECTIONS:
        section, given = str(key[0]), tree if isinstance(tree, Mapping) else {}
        return chosen_class(section, given.get(section, {"name": default_name(section)}))
    if is_component(key):
        items = tree.get(key[0]) if isinstance(tree, Mapping) else getattr(tree, str(key[0]), None)
        index = int(key[1]) if str(key[1]).isdigit() else -1
        has_item = isinstance(items, list | tuple) and 0 <= index < len(items)
        return chosen_class(str(key[0]), items[index]) if has_item else None  # type: ignore[index]
    if isinstance(key[-1], int):
        items = field_at(tree, key[:-1])
        return _section_of_items(items.annotation) if items else None
    field = field_at(tree, key)
    return _section_in(field.annotation) if field else None


def field_at(tree: Any, key: Key) -> FieldInfo | None:
    """Return the field of a key; None if it does not exist."""
    parent = section_class(tree, key[:-1]) if key else None
    return parent.model_fields.get(str(key[-1])) if parent else None


def is_key(tree: Any, key: Key) -> bool:
    """Return True if a key has a field, or lies in a mapping with free keys, such as `args`."""
    if is_component(key[:-1]) and key[-1] in ("name", "path"):
        return True  # of either kind of component, whichever is chosen now
    above = (field_at(tree, key[:depth]) for depth in range(1, len(key)))
    return field_at(tree, key) is not None or any(field and _holds_mapping(field.annotation) for field in above)


def value_types(tree: Any, key: Key) -> set[Any]:
    """Return the types that the field of a key accepts, null left out; empty if the field does not exist."""
    field = field_at(tree, key)
    return set(_plain_types(field.annotation)) - {NoneType} if field else set()


def is_single_value(tree: Any, key: Key) -> bool:
    """Return True if a key is a field that holds neither a section nor a mapping, so that it has no keys below it."""
    if is_component(key) or (len(key) == 1 and key[0] in COMPONENT_LISTS):
        return False
    field = field_at(tree, key)
    return field is not None and _section_in(field.annotation) is None and not _holds_mapping(field.annotation)


_NAMES_ELSEWHERE = {
    "accumulate_grad_batches": "trainer.gradient_accumulation_steps",
    "batch_size": "data.global_batch_size",
    "gradient_clip_val": "trainer.max_grad_norm",
    "learning_rate": "optimizer.lr",
    "max_epochs": "trainer.epochs",
    "num_epochs": "trainer.epochs",
    "num_train_epochs": "trainer.epochs",
    "per_device_train_batch_size": "data.micro_batch_size",
    "scheduler": "lr_scheduler",
}
"""Names of fields in other libraries, and the fields here."""


def nearest_key(tree: Any, key: Key) -> str:
    """Return a hint for an unknown key: the key that the user may have meant, or the known keys."""
    name, siblings = str(key[-1]), list((section_class(tree, key[:-1]) or ExperimentSchema).model_fields)
    is_of_item = len(key) > 1 and isinstance(key[-2], int)
    if name in _NAMES_ELSEWHERE and not is_of_item:
        return f"did you mean {_NAMES_ELSEWHERE[name]}?"
    near = nearest(name, siblings)
    if near:
        return f"did you mean {dotted((*key[:-1], near))}?"
    if is_of_item:
        return f"known here: {', '.join(siblings)}"
    elsewhere = list(_all_keys(tree))
    same_name = [found for found in elsewhere if found.rpartition(".")[2] == name]
    if same_name:
        return f"did you mean {same_name[0]}?"
    by_name = {found.rpartition(".")[2]: found for found in elsewhere}
    far = nearest(name, list(by_name), cutoff=0.7)
    return f"did you mean {by_name[far]}?" if far else f"known here: {', '.join(siblings)}"


def _all_keys(tree: Any) -> Iterator[str]:
    yield from ExperimentSchema.model_fields
    for section in ExperimentSchema.model_fields:
        cls = section_class(tree, (section,))
        if cls:
            yield from (f"{section}.{name}" for name in cls.model_fields)


def _section_in(annotation: Any) -> type[Section] | None:
    options = [annotation, *get_args(annotation)]
    return next((cls for cls in options if isinstance(cls, type) and issubclass(cls, Section)), None)


def _section_of_items(annotation: Any) -> type[Section] | None:
    """Return the section that the items of a list are, where the list may be one of several types."""
    if get_origin(annotation) is list:
        return _section_in(annotation)
    return next(filter(None, map(_section_of_items, get_args(annotation))), None)


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the member types of a union, without their annotations."""
    if get_origin(annotation) is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _plain_types(part)
    else:
        yield annotation


def _holds_mapping(annotation: Any) -> bool:
    return any(part is dict or get_origin(part) is dict or part is Any for part in [annotation, *get_args(annotation)])
