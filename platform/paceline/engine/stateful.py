"""State of a component as JSON values and named tensors, so that a checkpoint needs no pickle."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from paceline.errors import UnusableCode

TENSOR, TUPLE, ITEMS = "__tensor__", "__tuple__", "__items__"
"""Keys of the JSON objects that stand for what JSON lacks: a tensor, a tuple, a mapping whose keys are not all text."""
PLAIN = (bool, int, float, str, type(None))


class Stateful(Protocol):
    """A component whose state is saved with every checkpoint. Every rank calls both methods at the same time."""

    def state_dict(self) -> Mapping[str, Any]:
        """State to save; rank 0's is written."""

    def load_state_dict(self, state: Any) -> None:
        """Restore the state."""


def pack(state: Any, owner: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a nested state into JSON values and tensors.

    Args:
        state: mappings, sequences, numbers, text, None and tensors, nested.
        owner: the component, for error messages.

    Returns:
        JSON values in which each tensor is replaced by its name, and the tensors by name.

    Raises:
        UnusableCode: the state holds another type, a tensor that is not dense, or itself.
    """
    tensors: dict[str, torch.Tensor] = {}

    def not_saveable(what: str, place: str) -> UnusableCode:
        return UnusableCode(
            f"the state of {owner} holds {what} at {place or 'its top'}, which cannot be saved: "
            "return numbers, text, tensors, lists and mappings from state_dict()",
            "state-not-saveable",
            owner=owner,
            place=place,
        )

    def packed(value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_nested or value.layout is not torch.strided or value.is_quantized:
                raise not_saveable("a tensor that is not dense", place)
            name = place or "value"
            while name in tensors:  # {"a.b": x, "a": {"b": y}}
                name += "'"
            tensors[name] = value
            return {TENSOR: name}
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Mapping):
            entries = {key: packed(each, f"{place}.{key}" if place else str(key)) for key, each in value.items()}
            if all(isinstance(key, str) for key in entries) and not entries.keys() & {TENSOR, TUPLE, ITEMS}:
                return entries
            return {ITEMS: [[packed(key, f"{place}.key"), each] for key, each in entries.items()]}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            parts = [packed(each, f"{place}.{index}" if place else str(index)) for index, each in enumerate(value)]
            return {TUPLE: parts} if isinstance(value, tuple) else parts
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy's scalars
            return packed(value.item(), place)
        raise not_saveable(f"a {type(value).__name__}", place)

    try:
        return packed(state, ""), tensors
    except RecursionError:
        raise not_saveable("a container that contains itself, or hundreds of nested ones,", "") from None


def unpack(values: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put back together what `pack` split."""
    if isinstance(values, list):
        return [unpack(each, tensors) for each in values]
    if not isinstance(values, dict):
        return values
    if TENSOR in values:
        return tensors[values[TENSOR]]
    if TUPLE in values:
        return tuple(unpack(each, tensors) for each in values[TUPLE])
    if ITEMS in values:
        return {unpack(key, tensors): unpack(each, tensors) for key, each in values[ITEMS]}
    return {key: unpack(each, tensors) for key, each in values.items()}


def merged(states: Sequence[Any]) -> Any:
    """Packed states of ranks that hold different parts, as one: mappings are merged, else the first one counts."""
    if not all(isinstance(state, dict) for state in states):
        return states[0]
    keys = dict.fromkeys(key for state in states for key in state)
    return {key: merged([state[key] for state in states if key in state]) for key in keys}
