"""Syntax trees of the project's own code, for the tests that read it."""

import ast
import gc
from functools import cache


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
