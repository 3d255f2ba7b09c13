"""What differs between two configs."""

from collections.abc import Mapping
from typing import Any

from paceline.redaction import redact_values
from paceline.tracking.record import flatten, param_text

Change = tuple[str, str | None, str | None]
"""Dotted key, and the value in one config and in the other; None where it is not there."""


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between two dumped configs, without secrets."""
    before, after = _texts(old), _texts(new)
    keys = sorted(before.keys() | after.keys())
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    flat = redact_values(flatten(config))
    return {key: param_text(value) for key, value in flat.items()}
