"""`extends: base.yaml`: a config file that changes another one.

The two trees are merged: mappings key by key, everything else is replaced. A component that is chosen again, such as
`model.name`, keeps the values of the other file that it has fields for, as with an override.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.overrides import copy_tree, switch_component
from paceline.config.source import Source, read_source
from paceline.config.space import AXES
from paceline.errors import ConfigError, Problem

EXTENDS = "extends"
"""Key of the other file's path, relative to the file that it is written in."""


def read_config_file(path: Path) -> Source:
    """Read a config file, merged with those that it extends.

    Raises:
        ConfigError: one of the files cannot be read, or they extend each other in a circle.
    """
    return _read(path, ())


def _read(path: Path, children: tuple[Path, ...]) -> Source:
    source = read_source(path)
    if EXTENDS not in source.tree:
        return source
    place, base = source.place(EXTENDS), source.tree[EXTENDS]
    if not isinstance(base, str) or not base.strip():
        hint = "name one other config file, such as extends: base.yaml"
        raise ConfigError([Problem("wrong-type", "must be the path of a file", EXTENDS, place, hint)])
    parent_path = path.parent / base
    chain = (*children, path.resolve())
    if parent_path.resolve() in chain:
        hint = "remove the line from one of the files"
        raise ConfigError([Problem("extends-cycle", f"{base} extends this file in turn", EXTENDS, place, hint)])
    try:
        parent = _read(parent_path, chain)
    except ConfigError as error:
        if any(problem.code == "no-file" and problem.place == str(parent_path) for problem in error.problems):
            reason = f"there is no file {parent_path}"
            raise ConfigError([Problem("no-file", reason, EXTENDS, place, error.problems[0].hint)]) from None
        raise
    own = {key: value for key, value in source.tree.items() if key != EXTENDS}
    return Source(source.name, merged(parent.tree, own), source.positions, parent, source.file)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config tree with the values of another one in their place."""
    tree: dict[str, Any] = copy_tree(base)
    for section in COMPONENT_SECTIONS:
        before, after = tree.get(section), changes.get(section)
        if isinstance(before, dict) and isinstance(after, Mapping):
            tree[section] = switch_component(section, before, after)
    return _merged(tree, changes, ())


def _merged(base: dict[str, Any], changes: Mapping[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    for name, value in changes.items():
        before, below = base.get(name), (*key, name)
        # the values of an axis belong together: those of another distribution would not fit
        is_leaf = f"{'.'.join(key)}." == AXES
        if isinstance(before, dict) and isinstance(value, Mapping) and not is_leaf:
            base[name] = _merged(before, value, below)
        else:
            base[name] = copy_tree(value)
    return base
