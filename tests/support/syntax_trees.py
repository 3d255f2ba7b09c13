"""Syntax trees of the project's own code, for the tests that read it."""

import ast
import gc
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


@cache
def parsed(source: str) -> ast.Module:
    """Parse a piece of code into a tree, which is not to be changed.

    Before Python 3.11.8, whatever parses while another tree is being built makes that one fail ("AST constructor
    recursion depth mismatch", https://github.com/python/cpython/issues/106905): a finalizer may do that, or a thread
    that gets its turn during one. So the garbage collector rests meanwhile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


def nodes(source: str, *kinds: type[Node]) -> list[Node]:
    """Return the nodes of some kinds in a piece of code, kind by kind. Several tests walk the same files."""
    by_kind = _by_kind(source)
    return [node for kind in kinds for node in by_kind.get(kind, ())]  # type: ignore[misc]


@cache
def _by_kind(source: str) -> Mapping[type[ast.AST], list[ast.AST]]:
    """All nodes but the contexts of names: half the time of `ast.walk`, which looks for them field by field."""
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    open_ends: list[ast.AST] = [parsed(source)]
    while open_ends:
        node = open_ends.pop()
        found[type(node)].append(node)
        for value in node.__dict__.values():
            if isinstance(value, list):
                open_ends += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                open_ends.append(value)
    return found
