"""What differs between the config of a run and that of the command that is to resume it."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.tracking.record import flatten
from paceline.tracking.redact import redact, redact_values

CHANGES_NO_RESULT = (
    "scaling",
    "parallel",
    "tracking",
    "checkpoint",
    "storage",
    "data.num_workers",
    "data.pin_memory",
    "data.prefetch_factor",
    "data.persistent_workers",
    "data.cache",
    "trainer.epochs",
    "tuneup",
)
"""Keys and sections that change neither what is computed nor in which order."""

MAY_DIFFER_ON_RESUME = (*CHANGES_NO_RESULT, "sweep")
"""The same for a run, which passes the section `sweep` over."""

DERIVED_FROM_SCALING = ("data.micro_batch_size", "trainer.gradient_accumulation_steps")
"""How the same global batch is cut up; it has to follow when the number of workers changes."""


def config_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], may_differ: Sequence[str] = MAY_DIFFER_ON_RESUME
) -> dict[str, tuple[Any, Any]]:
    """What differs between two dumped configs and may not on resume: dotted key to (old, new).

    Args:
        may_differ: keys and sections whose differences are left out.
    """
    flat_old, flat_new = flatten(old), flatten(new)
    same_scaling = old.get("scaling") == new.get("scaling")
    free = may_differ if same_scaling else (*may_differ, *DERIVED_FROM_SCALING)
    changed = {}
    for key in sorted(flat_old.keys() | flat_new.keys()):
        before, after = flat_old.get(key), flat_new.get(key)
        if before != after and not is_below(key, free):
            changed[key] = before, after
    return changed


def is_below(key: str, places: Sequence[str]) -> bool:
    """Whether a dotted key is one of some keys, or in one of some sections."""
    return any(key == each or key.startswith(f"{each}.") for each in places)


def shown_value(key: str, value: Any) -> str:
    """A value of the config as errors show it, without what must not be shown."""
    return redact(repr(redact_values({key: value})[key]))
