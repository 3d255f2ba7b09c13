"""Differences between the config of a run and that of the command that resumes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.redaction import redact, redact_values
from paceline.tracking.run_record import flatten

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
    changed: dict[str, tuple[Any, Any]] = {}
    for key in sorted(flat_old.keys() | flat_new.keys()):
        before, after = flat_old.get(key), flat_new.get(key)
        if before != after and not is_below(key, free):
            changed |= _changed_entries(key, before, after)
    return changed


def _changed_entries(key: str, before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """What differs between two values: of two lists of components the entries, where these have different names."""
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        return {key: (before, after)}
    changed: dict[str, tuple[Any, Any]] = {}
    for name in {**old, **new}:
        place, one, other = f"{key}.{name}", old.get(name), new.get(name)
        if one is None or other is None:
            changed[place] = one, other
            continue
        fields, others = flatten(one, f"{place}."), flatten(other, f"{place}.")
        pairs = {field: (fields.get(field), others.get(field)) for field in sorted({**fields, **others})}
        changed |= {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    return changed or {key: (before, after)}  # only their order differs


def _by_name(value: Any) -> dict[str, Mapping[str, Any]] | None:
    """The entries of a list of components; None where they have no names, or two the same."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return None
    entries = {str(each.get("name") or each.get("path")): each for each in value}
    return entries if len(entries) == len(value) else None


def is_below(key: str, places: Sequence[str]) -> bool:
    """Whether a dotted key is one of some keys, or in one of some sections."""
    return any(key == each or key.startswith(f"{each}.") for each in places)


def shown_value(key: str, value: Any) -> str:
    """A value of the config as errors show it, without what must not be shown."""
    return redact(repr(redact_values({key: value})[key]))
