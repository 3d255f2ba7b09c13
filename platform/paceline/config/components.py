"""The parts of a config that name code: sections and items of lists that are chosen by `name` or `path`."""

from collections.abc import Iterator, Mapping
from typing import Any

COMPONENT_SECTIONS = {
    "task": "paceline.tasks",
    "model": "paceline.models",
    "data": "paceline.data",
    "optimizer": "paceline.optimizers",
    "lr_scheduler": "paceline.lr_schedulers",
}
"""Sections that are chosen by `name` or `path`, and the package that holds their components."""
COMPONENT_LISTS = {"metrics": "paceline.metrics", "callbacks": "paceline.callbacks"}
"""Lists whose items are chosen by `name` or `path`, and the package that holds their components."""
ROOMS = {**COMPONENT_SECTIONS, **COMPONENT_LISTS}


def is_component(key: tuple[str | int, ...]) -> bool:
    """Return True for the key of a component: `("model",)` or `("callbacks", 0)`."""
    return (len(key) == 1 and key[0] in COMPONENT_SECTIONS) or (len(key) == 2 and key[0] in COMPONENT_LISTS)


def components_in(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every component in a config tree, such as `model` and `callbacks.0`."""
    for section in COMPONENT_SECTIONS:
        if section in tree:
            yield section, tree[section]
    for name in COMPONENT_LISTS:
        items = tree.get(name)
        if isinstance(items, list | tuple):
            yield from ((f"{name}.{index}", item) for index, item in enumerate(items))


def subtree(tree: Any, key: str) -> Any:
    """Return the value of a tree at the dotted key of a component."""
    for part in key.split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree
