"""Modules of user code that a command imports: those of the config, and of all values that it tries."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from paceline.cluster.user_code import module_of, modules_by_key
from paceline.config.components import COMPONENT_LISTS, ROOMS
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import is_path
from paceline.config.overrides import SELECTORS, ConfigWarning
from paceline.config.own_techniques import own_techniques
from paceline.errors import ConfigError

Kind = Literal["train", "sweep", "tuneup"]
"""The command that a job runs."""


def modules_of_job(config: ExperimentConfig, kind: Kind) -> Iterator[tuple[str, Path]]:
    """Keys and modules: of the config, of the axes of a sweep, and of the custom techniques of a tune-up."""
    own = list(modules_by_key(config))
    yield from own
    if kind == "tuneup":
        for key, changed in own_techniques(config):
            yield from ((key, place) for used_at, place in modules_by_key(changed) if (used_at, place) not in own)
    if kind == "sweep" and config.sweep is not None:
        for axis, values in config.sweep.lists.items():
            if _chooses_code(axis):
                yield from dict.fromkeys((axis, place) for value in values for place in _of_value(config, axis, value))


def sent_modules(config: ExperimentConfig, kind: Kind) -> list[Path]:
    """Each module once, those of the config itself first."""
    return list(dict.fromkeys(place for _, place in modules_of_job(config, kind)))


def _chooses_code(axis: str) -> bool:
    """Whether a value of an axis may be a component, or the name or import path of one."""
    section, *below = axis.split(".")
    below = below[1:] if section in COMPONENT_LISTS else below
    return section in ROOMS and (not below or below[-1] in SELECTORS)


def _of_value(config: ExperimentConfig, axis: str, value: Any) -> Iterator[Path]:
    """The modules of a value: those of the import paths in it, and of the component that its name stands for."""
    yield from filter(None, map(module_of, _import_paths(axis, value)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            changed = config.model_copy(update={"sweep": None}).with_overrides({axis: value})
    except ConfigError:
        return  # told by what checks the points; beside other axes it may be right
    component = axis.rpartition(".")[0] if axis.rpartition(".")[2] in SELECTORS else axis
    for key, place in modules_by_key(changed):
        if key.startswith(f"{component}."):
            yield place


def _import_paths(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _import_paths(str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _import_paths(key, inner)
    elif key.rpartition(".")[2] == "path" and is_path(value):
        yield value
