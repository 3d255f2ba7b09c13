"""Loads an experiment from its file and overrides, and reports all problems at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import PydanticSerializationError

from paceline.config.components import components_in
from paceline.config.definitions import dataset_class_problem, is_dataset_class
from paceline.config.experiment import ExperimentConfig, try_validate, validate
from paceline.config.extending import read_config_file
from paceline.config.imports import has_import_paths, is_path, make_importable, missing_module, remembered_folders
from paceline.config.overrides import edit, parse_override, place_of, tree_of
from paceline.config.problems import Places
from paceline.config.signatures import argument_problems
from paceline.config.yaml_rules import Dumper
from paceline.errors import ConfigError, Problem

Overrides = Mapping[str, Any] | Sequence[str]
"""Overrides: dotted keys and their values, or texts of the form `key.path=value`."""

ADDED_ARGUMENTS = {"task": ("model",), "optimizer": ("lr",)}
"""Section to the keyword arguments that Paceline adds to the `args` of its `path`."""
POSITIONAL_ARGUMENTS = {"optimizer": 1, "lr_scheduler": 2}
"""Section to the number of positional arguments that Paceline passes to its `path`."""


def load_config(
    source: str | PathLike[str] | Mapping[str, Any], overrides: Overrides | None = None, *, folder: Path | None = None
) -> ExperimentConfig:
    """Load an experiment.

    If a `path:` names user code, the folder of the file and the working folder become importable, after installed
    packages. For a file in the folder of a sweep or a tune-up, so do the folders that `remember_folders` saved there.

    Args:
        source: a YAML file, or its content as a mapping.
        overrides: changes by dotted key, or texts of the form `key.path=value`.
        folder: folder to make importable beside the working folder, for a mapping that names user code.

    Raises:
        ConfigError: the source, the overrides or the resulting config are invalid; with every problem found.
    """
    changes, changed_at, problems = _read_overrides(overrides or {})
    if isinstance(source, Mapping):
        tree, misled = edit(source, changes)
        homes = [] if folder is None else [folder]
        places = Places(None, changed_at)
    else:
        try:
            read = read_config_file(Path(source))
        except ConfigError as error:
            raise ConfigError([*error.problems, *problems]) from None
        tree, misled = edit(read.tree, changes)
        homes = [each.file.absolute().parent for each in read.chain if each.file is not None]
        places = Places(read, changed_at)
    if has_import_paths(tree):
        make_importable([*homes, Path.cwd(), *(folder for home in homes for folder in remembered_folders(home))])
    problems += [replace(problem, place=changed_at.get(problem.key, "")) for problem in misled]
    config, found = try_validate(tree, places)
    found += missing_modules(tree, places)
    if config is None or problems or found:
        raise ConfigError([*sorted(found, key=places.order), *problems])
    return config


@contextmanager
def placing(path: str | PathLike[str], overrides: Sequence[str]) -> Iterator[None]:
    """Add places in the file or the overrides to the problems that are found only after loading.

    Args:
        path: file that `load_config` has read.
        overrides: overrides that `load_config` was given.

    Raises:
        ConfigError: the error raised in the `with` block, with the places of its problems.
    """
    try:
        yield
    except ConfigError as error:
        try:
            places = Places(read_config_file(Path(path)), _read_overrides(overrides)[1])
        except ConfigError:  # a pipe, say, which can be read only once
            raise error from None
        problems = [each if each.place or not each.key else _placed(each, places) for each in error.problems]
        raise ConfigError(problems) from error


def _placed(problem: Problem, places: Places) -> Problem:
    return replace(problem, place=places.of(problem.key))


def overridden(config: ExperimentConfig, overrides: Overrides, before: Mapping[str, Any]) -> ExperimentConfig:
    """Return a changed copy of a config whose user code is importable already.

    Args:
        before: changes that are applied first, by dotted key.

    Raises:
        ConfigError: the overrides or the resulting config are invalid; with every problem found.
    """
    changes, changed_at, problems = _read_overrides(overrides)
    if problems:
        raise ConfigError(problems)
    tree, misled = edit(edit(tree_of(config), before)[0], changes)
    if misled:
        raise ConfigError([replace(problem, place=changed_at.get(problem.key, "")) for problem in misled])
    if has_import_paths(changes):
        make_importable([Path.cwd()])
    changed = validate(tree, overrides=changed_at)
    if found := missing_modules(tree, Places(None, changed_at)):
        raise ConfigError(found)
    return changed


def dump_yaml(config: ExperimentConfig) -> str:
    """Return the resolved config as YAML with every field; `load_config` reads it back as the same config.

    Raises:
        ConfigError: `args` hold a Python object that cannot be written to a file.
    """
    try:
        tree = {key: _selector_first(value) for key, value in config.model_dump(mode="json").items()}
        return yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    except (PydanticSerializationError, yaml.YAMLError) as error:
        hint = "use text, numbers, lists and mappings in args"
        raise ConfigError([Problem("not-plain", f"cannot be written to a file: {error}", hint=hint)]) from None


def _selector_first(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {**{key: section[key] for key in ("name", "path", "args") if key in section}, **section}


def _read_overrides(overrides: Overrides) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    if isinstance(overrides, Mapping):
        return dict(overrides), dict.fromkeys(overrides, ""), []
    if isinstance(overrides, str):
        overrides = [overrides]
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []
    for text in overrides:
        try:
            key, value = parse_override(text)
        except ConfigError as error:
            problems += error.problems
        else:
            values[key], places[key] = value, place_of(text)
    return values, places, problems


def missing_modules(tree: Mapping[str, Any], places: Places | None = None) -> list[Problem]:
    """Return the problems of the import paths and arguments of user code in a config tree, without running the code.

    The module or the name may not exist, or take other arguments. Values set by axes of a sweep are not checked here,
    but for each trial.

    Args:
        tree: plain values as in a file, or a dumped config.
        places: places of the values in the file or the overrides, for messages.
    """
    places = places or Places()
    axes = _axes_of(tree)
    found = []
    for key, value in components_in(tree):
        chosen_by_path = isinstance(value, Mapping) and ("name" not in value or key.startswith("metrics."))
        if chosen_by_path and value.get("path") is not None:
            found += [replace(each, key=f"{key}.{each.key}") for each in _about_code(key, value, axes)]
    return [replace(problem, place=places.of(problem.key)) for problem in found]


def _about_code(section: str, value: Mapping[str, Any], axes: Sequence[str]) -> list[Problem]:
    path, args = value.get("path"), value.get("args", {})
    problem = missing_module(path) if isinstance(path, str) else None
    if problem:
        return [problem]
    is_switched = any(axis in (section, *(f"{section}.{key}" for key in ("name", "path", "args"))) for axis in axes)
    if is_switched or not isinstance(args, Mapping) or not (callable(path) or is_path(path)):
        return []
    by_axes = [axis.split(".")[2] for axis in axes if axis.startswith(f"{section}.args.")]
    added = [*by_axes, *ADDED_ARGUMENTS.get(section, ())]
    problems = argument_problems(path, args, added, POSITIONAL_ARGUMENTS.get(section, 0))
    if problems and section == "data" and isinstance(path, str) and is_dataset_class(path):
        return [dataset_class_problem(path)]  # its arguments would not help
    return problems


def _axes_of(tree: Mapping[str, Any]) -> list[str]:
    """Return the axes of a sweep; empty if the tree has no valid section `sweep.space`."""
    sweep = tree.get("sweep")
    space = sweep.get("space") if isinstance(sweep, Mapping) else getattr(sweep, "space", None)
    return [str(axis) for axis in space] if isinstance(space, Mapping) else []
