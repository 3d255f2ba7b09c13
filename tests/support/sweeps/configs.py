"""Small configs with a sweep."""

from collections.abc import Mapping
from typing import Any

from paceline.config.experiment import ExperimentConfig, validate

RATES = {"optimizer.lr": [0.1, 0.2]}
"""A space of two points."""
TREE: dict[str, Any] = {"name": "run", "model": {"name": "mlp"}, "data": {"name": "synthetic"}}


def sweep_config(
    space: Mapping[str, Any] = RATES, base: Mapping[str, Any] | None = None, **section: Any
) -> ExperimentConfig:
    """A config with a sweep.

    Args:
        base: sections that replace those of `TREE`, or are added.
        section: fields of the sweep beside `space`.
    """
    return validate({**TREE, **(base or {}), "sweep": {"space": space, **section}})
