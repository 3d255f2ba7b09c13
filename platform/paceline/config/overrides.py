"""Changes a config tree by dotted keys, for the command line, sweeps and notebooks alike."""

import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.config.base import Section
from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.fields import chosen_class, default_name, is_single_value
from paceline.config.source import Key, dotted, read_value
from paceline.config.space import AXES
from paceline.errors import ConfigError, Problem, coded

SELECTORS = ("name", "path")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+){0,49}\Z")


class ConfigWarning(UserWarning):
    """Warning that a config is valid, but a requested setting has no effect."""


def parse_override(text: str) -> tuple[str, Any]:
    """Split `key.path=value`, and read the value by the rules of the config file.

    Raises:
        ConfigError: the text does not have this form, or its value is not YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.match(key):
        reason = "is not an override" if not equals else f"{key[:80]!r} is not a key"
        raise ConfigError([Problem("bad-override", reason, "", place_of(text), "write key.path=value")])
    try:
        return key, read_value(value, place_of(text))
    except ConfigError as error:
        raise ConfigError([_below(key, problem) for problem in error.problems]) from None


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as command-line arguments, such as `data.cache="memory"`."""
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def place_of(text: str) -> str:
    """Return the place of an override in messages."""
    return f"override {text[:80]!r}"


def apply_overrides(tree: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changed copy of a config tree. `experiment.validate` checks its keys and values.

    Missing sections are created. A section may be replaced by a mapping. Setting `X.name` or `X.path` of a component
    switches it: the other selector is removed, and so are, with a `ConfigWarning`, the keys that the new component does
    not have, unless they are overridden too.

    Raises:
        ConfigError: a key lies below a field that holds a single value.
    """
    result, problems = edit(tree, overrides)
    if problems:
        raise ConfigError(problems)
    return result


def edit(tree: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the tree as changed by `apply_overrides`, and the problems that it would raise."""
    result: dict[str, Any] = copy_tree(tree)
    whole = {key: value for key, value in overrides.items() if "." not in key}
    parts = {key: value for key, value in overrides.items() if "." in key}
    result.update(copy_tree(whole))
    for section in COMPONENT_SECTIONS:
        _prepare_component(
            result, section, [key.split(".")[1] for key in parts if key.startswith(f"{section}.")], parts
        )
    problems = [_set(result, split_key(key), copy_tree(value)) for key, value in _shallow_first(parts)]
    return result, [problem for problem in problems if problem]


def split_key(key: str) -> Key:
    """Return the parts of a dotted key. The rest after `sweep.space.` is one part, the name of an axis."""
    if key.startswith(AXES):
        return (*AXES[:-1].split("."), key.removeprefix(AXES))
    return tuple(key.split("."))


def tree_of(section: Section) -> dict[str, Any]:
    """Return the values that were set when a section was created, as plain mappings without defaults."""
    chosen = [name for name in type(section).model_fields if name in section.model_fields_set]
    return {name: copy_tree(getattr(section, name)) for name in chosen}


def copy_tree(value: Any) -> Any:
    """Return a copy of mappings, sections and lists; all other objects are not copied."""
    if isinstance(value, Section):
        return tree_of(value)
    if isinstance(value, Mapping):
        return {key: copy_tree(item) for key, item in value.items()}
    return [copy_tree(item) for item in value] if isinstance(value, list) else value


def _below(key: str, problem: Problem) -> Problem:
    full = f"{key}.{problem.key}" if problem.key else key
    return Problem(problem.code, problem.reason, full, problem.place, problem.hint)


def _shallow_first(overrides: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(overrides.items(), key=lambda item: item[0].count("."))


def switch_component(section: str, before: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a component's values without the fields that the component chosen by `changes` does not have.

    If `path` changes, the `args` of the old function are removed too.
    """
    chosen = {name: changes[name] for name in SELECTORS if name in changes}
    if not chosen:
        return before
    after = _switched(section, before, chosen, list(changes))
    if chosen.get("path") != before.get("path"):
        after.pop("args", None)
    return after


def _prepare_component(tree: dict[str, Any], section: str, names: Sequence[str], overrides: Mapping[str, Any]) -> None:
    """Give a missing section its default component, and switch a section whose selector is overridden."""
    if not names:
        return
    before = tree.get(section)
    chosen = {name: overrides[f"{section}.{name}"] for name in SELECTORS if f"{section}.{name}" in overrides}
    if before is None:
        default = default_name(section)
        tree[section] = {"name": default} if default and not chosen else {}
    elif chosen and isinstance(before, dict):
        tree[section] = _switched(section, before, chosen, names)


def _switched(section: str, before: dict[str, Any], chosen: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    after = {key: value for key, value in before.items() if key not in SELECTORS}
    new_class = chosen_class(section, chosen)
    if new_class is None or new_class is chosen_class(section, before):
        return after
    lost = [key for key in after if key not in new_class.model_fields and key not in names]
    if lost:
        selector, value = next(iter(chosen.items()))
        warnings.warn(
            coded(
                f"{section}.{selector}={value}: dropped {', '.join(lost)}, which the new {section} does not have",
                "dropped-fields",
            ),
            ConfigWarning,
            stacklevel=_outside(),
        )
    return {key: value for key, value in after.items() if key not in lost}


def _outside() -> int:
    """Return the stack level of the first caller outside of `paceline.config`, to name the user's line in a warning."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith("paceline.config"):
        frame, level = frame.f_back, level + 1
    return level


def _set(tree: dict[str, Any], key: Key, value: Any) -> Problem | None:
    inner = tree
    for depth in range(1, len(key)):
        above, name = key[:depth], str(key[depth - 1])
        if is_single_value(tree, above) or not isinstance(inner.get(name, {}), dict | list | None):
            reason = f"{dotted(above)} holds a single value: there is no {str(key[depth])!r} in it"
            return Problem("unknown-key", reason, dotted(key))
        if inner.get(name) is None:
            inner[name] = {}
        inner = inner[name]
        if isinstance(inner, list):
            return _set_in_item(inner, key, depth, value)
    inner[str(key[-1])] = value
    return None


def _set_in_item(items: list[Any], key: Key, depth: int, value: Any) -> Problem | None:
    """Set a value in an item of a list of components, such as `callbacks.0.decay`."""
    index, *below = key[depth:]
    if not str(index).isdigit() or int(index) >= len(items) or not isinstance(items[int(index)], dict):
        reason = f"{dotted(key[:depth])} is a list of {len(items)}: there is no item {index!r}"
        return Problem("unknown-key", reason, dotted(key), hint="items are counted from 0")
    if not below:
        items[int(index)] = value
        return None
    return _set(items[int(index)], tuple(below), value)
