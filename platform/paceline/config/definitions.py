"""Finds the definition behind an import path without running its code."""

import ast
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from paceline.config.imports import WRAP_IN_FUNCTION, spec_of
from paceline.config.top_names import binding_of
from paceline.errors import Problem

_MOST_FOLLOWED = 5
"""Maximum number of `from ... import` statements that are followed from module to module."""


def definition_of(path: str) -> Any:
    """Return the statement that defines the target of an import path, or the object itself once it is imported.

    None if it cannot be determined.
    """
    module, _, name = path.partition(":")
    return _in_module(module, name, _MOST_FOLLOWED)


def is_dataset_class(path: str, follow: int = _MOST_FOLLOWED) -> bool:
    """Return True if an import path is known to lead to a class of torch data sets.

    A class that is not imported yet counts by the names of its bases.
    """
    found = definition_of(path)
    if isinstance(found, ast.ClassDef):
        bases = [ast.unparse(base).partition("[")[0] for base in found.bases]
        own = [f"{path.partition(':')[0]}:{base}" for base in bases] if follow else []
        if any(base.endswith("Dataset") for base in bases):
            return True
        return any(is_dataset_class(base, follow - 1) for base in own)
    bases = [f"{base.__module__}.{base.__name__}" for base in getattr(found, "__mro__", ())]
    return "torch.utils.data.dataset.Dataset" in bases


def dataset_class_problem(path: str) -> Problem:
    """Return the problem of a `data.path` that names a data set class instead of a function."""
    reason = f"{path.partition(':')[2]} is a data set class"
    return Problem("not-two-sets", reason, "path", hint=WRAP_IN_FUNCTION)


def _in_module(module: str, name: str, follow: int) -> Any:
    if module in sys.modules:
        return _loaded(module, name)
    try:
        spec = spec_of(module)
        is_file = spec is not None and spec.origin is not None and spec.origin.endswith(".py")
        node = binding_of(name, Path(str(spec.origin))) if spec and is_file else None
    except (ImportError, KeyError, ValueError, SyntaxError):
        return None
    if isinstance(node, ast.ImportFrom) and spec and follow:
        return _imported(node, spec, name, follow - 1)
    return node


def _loaded(module: str, name: str) -> Any:
    first, *inner = name.split(".")
    found = getattr(sys.modules[module], "__dict__", {}).get(first)
    for part in inner:
        found = getattr(found, part, None)
    return found


def _imported(node: ast.ImportFrom, spec: ModuleSpec, name: str, follow: int) -> Any:
    """Return the definition of a name that a module imports from another one."""
    package = spec.name if spec.submodule_search_locations is not None else spec.name.rpartition(".")[0]
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), "")
    return _in_module(module, original, follow) if module and original else None
