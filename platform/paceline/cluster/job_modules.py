"""Modules of user code that a job imports: those of the config, and of all values that it tries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.cluster.user_code import modules_by_key
from paceline.config.components import ROOMS
from paceline.config.experiment import ExperimentConfig
from paceline.config.own_techniques import own_techniques
from paceline.errors import ConfigError


def modules_of_job(config: ExperimentConfig, tunes: bool) -> Iterator[tuple[str, Path]]:
    """Keys and modules: of the config, of a sweep's axes, and of a tune-up's own techniques.

    Args:
        tunes: whether the job is a tune-up.
    """
    own = list(modules_by_key(config))
    yield from own
    for key, changed in own_techniques(config) if tunes else ():
        yield from ((key, place) for used_at, place in modules_by_key(changed) if (used_at, place) not in own)
    lists = config.sweep.lists if config.sweep is not None else {}
    for axis, values in lists.items():
        section, *_, last = axis.split(".")
        if section in ROOMS and last == "path":
            for value in values:
                yield from (found for found in _of_point(config, axis, value) if found[0] == axis)


def _of_point(config: ExperimentConfig, axis: str, value: Any) -> Iterator[tuple[str, Path]]:
    try:
        changed = config.model_copy(update={"sweep": None}).with_overrides({axis: value})
    except ConfigError:
        return  # told by what checks the points
    yield from modules_by_key(changed)
