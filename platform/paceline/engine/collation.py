"""Samples made into a batch; where they do not fit together, the error says which of them differ."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

from paceline.engine.sample_trees import Unstackable, likeness

SAME_SHAPE = "make all samples of one shape (crop, resize, pad), or return a `collate_fn` with the data"


def collated(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Return `collate(samples)`.

    Raises:
        Exception: the samples do not make a batch; as `collate` raises it, with a note if that is torch's default.
    """
    try:
        return collate(samples)
    except Exception as error:
        if collate is default_collate:
            error.add_note(_reason(samples))
        raise


def _reason(samples: list[Any]) -> str:
    """Return why samples cannot be stacked, with the next step."""
    try:
        first, *others = map(likeness, samples)
    except Unstackable as reason:
        return f"the batch cannot be stacked: {reason}; return a `collate_fn` with the data"
    for number, other in enumerate(others, 2):
        if other != first:
            return f"sample 1 of the batch is a {first}, sample {number} a {other}; {SAME_SHAPE}"
    return f"the samples of the batch cannot be stacked; {SAME_SHAPE}"
