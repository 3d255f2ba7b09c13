"""Finds the shipped components: every `Component` with a `name` in the modules of a component package.

Modules whose name begins with an underscore are left out: they hold what components build, and may import torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import or_
from pkgutil import iter_modules
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, create_model

from paceline.config.base import Component
from paceline.config.imports import Called, Imported, Registered

BY_PATH = "path"
"""Tag of the variant that is chosen by an import path."""


def _classes(package: str) -> Iterator[type[Component]]:
    for module in iter_modules(import_module(package).__path__):
        if module.name.startswith("_"):
            continue
        loaded = import_module(f"{package}.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Component) and value.__module__ == loaded.__name__:
                yield value


@cache
def components(package: str) -> Mapping[str, type[Component]]:
    """Every value of `name` that a room offers, and the class behind it; `path` stands for the user's own.

    Installed packages add to them by entry points of the group of the room's name, such as `paceline.optimizers`. An
    entry point leads to the same callable as `path` would. It is not imported before it is used; a shipped name counts
    before one of an entry point.
    """
    found: dict[str, type[Component]] = {}
    for cls in _classes(package):
        for name in cls.selectors():
            found[name] = cls
        if "path" in cls.model_fields:
            found[BY_PATH] = cls
    return {**_registered(package, found.get(BY_PATH)), **found}


@cache
def _all_entry_points() -> Any:
    return entry_points()


def entry_points_of(room: str) -> Iterable[EntryPoint]:
    """The entry points that installed packages have for a room; the group has the room's name."""
    found: Iterable[EntryPoint] = _all_entry_points().select(group=room)
    return found


def _registered(package: str, imported: type[Component] | None) -> dict[str, type[Component]]:
    """A class for each entry point of a room: the one of `path`, with a name in place of the path."""
    found: dict[str, Any] = {}
    shared = [cls for cls in getattr(imported, "__mro__", ()) if issubclass(cls, Called)]
    base = next((cls for cls in shared if cls is not Called and not issubclass(cls, Imported)), None)
    for point in entry_points_of(package) if base else ():
        bases: Any = (Registered, base)
        name: Any = Literal[point.name]
        found[point.name] = create_model(f"{point.name}_{base.__name__}", __base__=bases, name=(name, ...))  # type: ignore[union-attr]
        found[point.name].entry_point = point.value
        found[point.name].package = point.dist.name if point.dist else ""
    return found


def _selector(known: Mapping[str, type[Component]], names: Mapping[type[Component], str]) -> Any:
    def choose(value: Any) -> str | None:
        if isinstance(value, Component):
            return names.get(type(value))
        if not isinstance(value, Mapping):
            return None
        if "name" in value:
            name = value["name"]
            cls = known.get(name) if isinstance(name, str) and name != BY_PATH else None
            return names.get(cls) if cls else None
        return BY_PATH if "path" in value else None

    return choose


def component_union(package: str) -> Any:
    """A pydantic type that accepts any component of `package`, chosen by its `name` or `path`."""
    known = components(package)
    names: dict[type[Component], str] = {}
    for name, cls in known.items():
        names.setdefault(cls, BY_PATH if name == BY_PATH else cls.__name__)
    variants = [Annotated[cls, Tag(tag)] for cls, tag in names.items()]
    return Annotated[reduce(or_, variants), Discriminator(_selector(known, names))]
