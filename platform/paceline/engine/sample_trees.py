"""Samples and batches as trees: tensors and numbers in any nesting of mappings, lists and tuples."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


class Unstackable(Exception):
    """The samples cannot be rows of one tensor."""


def likeness(sample: Any) -> str:
    """Structure, types and shapes of a sample. Samples that are alike collate into the same rows, whichever of them
    stand together.

    Raises:
        Unstackable: it holds something that depends on its neighbours, or is not a number.
    """
    kind = type(sample)
    if (
        isinstance(sample, torch.Tensor)
        and sample.layout is torch.strided
        and not (sample.is_nested or sample.requires_grad)
    ):
        return f"{kind.__name__} {str(sample.dtype).removeprefix('torch.')} {list(sample.shape)}"
    if isinstance(sample, np.ndarray) and sample.dtype.kind in "biufc":
        return f"{kind.__name__} {sample.dtype} {list(sample.shape)}"
    if kind in (bool, int, float) or isinstance(sample, np.number | np.bool_):
        return kind.__name__
    if _is_mapping(sample):
        return f"{kind.__name__}({', '.join(f'{key!r}: {likeness(item)}' for key, item in sample.items())})"
    if _is_row(sample):
        return f"{kind.__name__}({', '.join(map(likeness, sample))})"
    raise Unstackable(f"its samples hold a {kind.__name__}")


# Others than these may carry more than their items, which collating takes from the first sample of a batch.


def _is_mapping(value: Any) -> bool:
    return type(value) in (dict, OrderedDict, defaultdict)


def _is_row(value: Any) -> bool:
    return type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function` applied to whatever its mappings, lists and tuples hold."""
    if _is_mapping(value):
        items = copy.copy(value)
        items.update((key, map_leaves(function, item)) for key, item in value.items())
        return items
    if _is_row(value):
        items = [map_leaves(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


def leaves_of(value: Any) -> Iterator[Any]:
    """Whatever the mappings, lists and tuples in `value` hold."""
    if _is_mapping(value) or _is_row(value):
        for item in value.values() if _is_mapping(value) else value:
            yield from leaves_of(item)
    else:
        yield value


def own_copy(sample: Any) -> Any:
    """A copy that shares no memory with the sample, nor holds more than it: a view's copy would hold all it views."""
    return map_leaves(_own_leaf, sample)


def _own_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)
