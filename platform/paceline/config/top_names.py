"""The names that a module's file binds at its top level, read without running it."""

import ast
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_LARGEST_FILE = 200_000
_DYNAMIC = {"__getattr__", "globals", "locals", "vars", "exec", "setattr"}
"""Whoever binds or uses one of these may have names that do not stand in the file."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def top_names(file: Path) -> set[str] | None:
    """Every name that a module may have; None when reading its file cannot tell.

    Raises:
        SyntaxError: the file is not Python.
    """
    tree = _parsed(file)
    if tree is None:
        return None
    names = {name for node in _top_level(tree) for name in _bound_by(node)}
    if "*" in names or names & _DYNAMIC or any(_is_dynamic(node) for node in ast.walk(tree)):
        return None
    return names | _set_inside(tree)


def binding_of(name: str, file: Path) -> ast.AST | None:
    """The one statement that binds a name at the top level of a file; None when there are others, or it is not known.

    Raises:
        SyntaxError: the file is not Python.
    """
    names, tree = top_names(file), _parsed(file)
    if names is None or tree is None or name in _set_inside(tree):
        return None
    found = [node for node in _top_level(tree) if name in _bound_by(node)]
    return found[0] if len(found) == 1 else None


def _set_inside(tree: ast.AST) -> set[str]:
    """The names that functions may bind at the top level."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _parsed(file: Path) -> ast.Module | None:
    try:
        about = file.stat()
        return None if about.st_size > _LARGEST_FILE else _parsed_once(file, about.st_mtime_ns, about.st_size)
    except (OSError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=8)
def _parsed_once(file: Path, changed_ns: int, size: int) -> ast.Module:
    """Parse a file; again only when it has changed, as the time of its last change and its size tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(file.read_bytes(), str(file))


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that are outside of every function and class; those themselves are among them."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _top_level(child)


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
        return [node.name] if node.name else []
    if isinstance(node, ast.MatchMapping):
        return [node.rest] if node.rest else []
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def _is_dynamic(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "modules" and isinstance(node.value, ast.Name) and node.value.id == "sys"
    return isinstance(node, ast.Name) and node.id in _DYNAMIC
