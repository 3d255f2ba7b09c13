"""Loads an experiment from its file and overrides, and says everything that is wrong with it at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from paceline.config.checks import ERROR_TYPE
from paceline.config.components import COMPONENT_SECTIONS, components_in
from paceline.config.disagreement import Disagreement
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import has_import_paths, is_path, make_importable, missing_module, remembered_folders
from paceline.config.overrides import copy_tree, edit, parse_override, place_of, tree_of
from paceline.config.problems import Places, broken_keys, explain, selector_problems
from paceline.config.signatures import argument_problems
from paceline.config.source import Source, read_source
from paceline.config.yaml_rules import Dumper
from paceline.errors import ConfigError, Problem

Overrides = Mapping[str, Any] | Sequence[str]
"""Dotted keys and their values, or texts of the form `key.path=value`."""

ADDED_ARGUMENTS = {"task": ("model",), "optimizer": ("lr",)}
"""Section to what its `path` is called with by name beside its `args`."""
POSITIONAL_ARGUMENTS = {"optimizer": 1, "lr_scheduler": 2}
"""Section to the number of arguments that its `path` is called with by position."""


def load_config(path: str | PathLike[str], overrides: Overrides | None = None) -> ExperimentConfig:
    """Load an experiment.

    Where a `path:` names user code, the folder of the file and the working folder become importable, after installed
    packages; for a file that a sweep or a tune-up has left in its folder, also those that it was started with.

    Args:
        path: the YAML file.
        overrides: changes to what is in the file, see `overrides.apply_overrides`.

    Raises:
        ConfigError: the file, the overrides or the config that they make are wrong; with every problem found.
    """
    file = Path(path)
    home = file.absolute().parent
    changes, changed_at, problems = _read_overrides(overrides or {})
    try:
        source = read_source(file)
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    tree, misled = edit(source.tree, changes)
    if has_import_paths(tree):
        make_importable([home, Path.cwd(), *remembered_folders(home)])
    places = Places(source, changed_at)
    problems += [replace(problem, place=changed_at.get(problem.key, "")) for problem in misled]
    config, found = _check(tree, places)
    found += missing_modules(tree, places)
    if config is None or problems or found:
        raise ConfigError([*sorted(found, key=places.order), *problems])
    return config


@contextmanager
def placing(path: str | PathLike[str], overrides: Sequence[str]) -> Iterator[None]:
    """Tell where in the file, or in which override, what is wrong was written that is only found after loading.

    Args:
        path: the file that `load_config` has read.
        overrides: those that it was given.

    Raises:
        ConfigError: the one that is raised within, with the places of its problems.
    """
    try:
        yield
    except ConfigError as error:
        try:
            places = Places(read_source(Path(path)), _read_overrides(overrides)[1])
        except ConfigError:  # a pipe, say, which can be read only once
            raise error from None
        problems = [each if each.place or not each.key else _placed(each, places) for each in error.problems]
        raise ConfigError(problems) from error


def _placed(problem: Problem, places: Places) -> Problem:
    return replace(problem, place=places.of(problem.key))


def validate(
    tree: Mapping[str, Any], source: Source | None = None, overrides: Mapping[str, str] | None = None
) -> ExperimentConfig:
    """Check a config tree as a whole.

    Args:
        tree: plain values, as they stand in a file.
        source: the file that they came from, for the places in messages.
        overrides: place of each key that no longer has the file's value; empty text for one set from Python.

    Raises:
        ConfigError: the tree is no valid config; with every problem found.
    """
    places = Places(source, overrides or {})
    config, problems = _check(tree, places)
    if config is None:
        raise ConfigError(sorted(problems, key=places.order))
    return config


def overridden(config: ExperimentConfig, overrides: Overrides, before: Mapping[str, Any]) -> ExperimentConfig:
    """A changed copy of a config whose user code is importable already.

    Args:
        before: changes that are made first, by dotted key.

    Raises:
        ConfigError: the overrides or the config that they make are wrong; with every problem found.
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
    """The resolved config, every field written out; `load_config` reads it back as the same config.

    Raises:
        ConfigError: `args` hold a Python object that no file can.
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


def _check(tree: Mapping[str, Any], places: Places) -> tuple[ExperimentConfig | None, list[Problem]]:
    try:
        return ExperimentConfig.model_validate(tree), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    chosen_twice = [replace(problem, place=places.of(problem.key)) for problem in selector_problems(tree)]
    twice = {problem.key for problem in chosen_twice}
    plain = [each for each in errors if each["type"] != ERROR_TYPE and not (each["loc"] and each["loc"][0] in twice)]
    problems = [*chosen_twice, *explain(plain, tree, places)]
    found = [each for error in errors if error["type"] == ERROR_TYPE for each in error["ctx"]["found"]]
    found = found or _disagreements_beside(problems, tree)
    return None, [*problems, *(replace(each.problem, place=places.of(each.problem.key)) for each in found)]


def _disagreements_beside(problems: list[Problem], tree: Any) -> list[Disagreement]:
    """What disagrees among the fields that are right, so that it need not wait until the others are."""
    if not isinstance(tree, Mapping):
        return []
    rest = copy_tree(tree)
    broken = broken_keys(problems, tree)
    for key in broken:
        _remove(rest, [str(part) for part in key])
    stand_ins: dict[str, Any] = {section: {"path": "a:b"} for section in COMPONENT_SECTIONS}
    required = {
        name: stand_ins.get(name, "x") for name, field in ExperimentConfig.model_fields.items() if field.is_required()
    }
    try:
        ExperimentConfig.model_validate({**required, **rest})
    except ValidationError as error:
        found: list[Disagreement] = [
            each for one in error.errors(include_url=False) if one["type"] == ERROR_TYPE for each in one["ctx"]["found"]
        ]
        gone = [".".join(str(part) for part in key) for key in broken]
        return [each for each in found if not any(_within(key, gone) for key in each.keys)]
    return []


def _within(key: str, sections: list[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _remove(tree: Any, key: list[str]) -> None:
    for part in key[:-1]:
        tree = tree.get(part) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(key[-1], None)


def missing_modules(tree: Mapping[str, Any], places: Places | None = None) -> list[Problem]:
    """What is wrong with how a config tree calls the user's own code; none of it is run.

    The module or the name may not be there, or take other arguments. What axes of a sweep set is left to its points.

    Args:
        tree: plain values as in a file, or a dumped config.
        places: where the values came from, for the places in messages.
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
    return argument_problems(path, args, added, POSITIONAL_ARGUMENTS.get(section, 0))


def _axes_of(tree: Mapping[str, Any]) -> list[str]:
    """The axes of a sweep, as far as the tree has a section of that form."""
    sweep = tree.get("sweep")
    space = sweep.get("space") if isinstance(sweep, Mapping) else getattr(sweep, "space", None)
    return [str(axis) for axis in space] if isinstance(space, Mapping) else []
