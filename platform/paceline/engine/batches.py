"""Batches as trees: tensors in any nesting of mappings, sequences, named tuples and dataclasses."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Function = Callable[[Any], Any]
_ATOMS = (str, bytes, bytearray, memoryview, range)
"""Sequences that are values, not containers."""


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any], move_object: Function | None = None) -> Any:
    """Return the batch with `function` applied to each tensor in it; the batch itself is left as it is.

    A container keeps its type and its other attributes where a shallow copy of it accepts the new items. Otherwise a
    mapping becomes a `dict` and a sequence a `list`.

    Args:
        move_object: applied to each object that has a method `to`, except tensors and mappings. None treats a named
            tuple or dataclass like any other, and leaves objects of unknown type alone.
    """

    def mapped(value: Any) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return function(value)
        if kind is dict:
            return {key: mapped(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            return kind(map(mapped, value))
        if isinstance(value, _ATOMS):
            return value
        if isinstance(value, Mapping):
            return _with_items(value, {key: mapped(item) for key, item in value.items()})
        if move_object is not None and has_to(value):
            return move_object(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*map(mapped, value))
        if isinstance(value, Sequence):
            return _like(value, list(map(mapped, value)))
        if is_dataclass(value):
            return _with_fields(value, {name: mapped(item) for name, item in fields_of(value)})
        return value

    return mapped(batch)


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that `map_tensors` applies its function to, in the same order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, _ATOMS):
        return
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from tensors_in(item)
    elif isinstance(batch, Sequence):
        for item in batch:
            yield from tensors_in(item)
    elif is_dataclass(batch):
        for _, item in fields_of(batch):
            yield from tensors_in(item)


def has_to(value: Any) -> bool:
    """True for an object with a method `to`, such as a `PackedSequence` or a batch of graphs."""
    return callable(getattr(value, "to", None)) and not isinstance(value, type)


def is_dataclass(value: Any) -> bool:
    """True for an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def fields_of(value: Any) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass instance that are set, by name."""
    return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value) if hasattr(value, each.name)]


def _with_items(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    before = dict(mapping)
    try:
        clone: Any = copy.copy(mapping)
        for key, item in items.items():
            clone[key] = item
    except Exception:  # whatever a mapping that cannot be copied or changed raises
        return items
    if all(mapping[key] is item for key, item in before.items()):
        return clone  # type: ignore[no-any-return]
    for key, item in before.items():  # the copy shares its storage with the original
        mapping[key] = item  # type: ignore[index]
    return items


def _like(sequence: Sequence[Any], items: list[Any]) -> Sequence[Any]:
    try:
        return type(sequence)(items)  # type: ignore[call-arg]
    except Exception:  # the constructor takes something else
        return items


def _with_fields(instance: Any, items: dict[str, Any]) -> Any:
    clone = copy.copy(instance)
    for name, item in items.items():
        object.__setattr__(clone, name, item)  # a frozen dataclass has no other way
    return clone
