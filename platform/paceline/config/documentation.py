"""Documentation of the config's fields: the docstrings below them.

It is read from the source on demand. Pydantic can read it too, but does so for every class when it is created, which
took a fifth of the time to load a config.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from textwrap import dedent

from paceline.config.base import Section


@cache
def documentation(cls: type[Section]) -> Mapping[str, str]:
    """Return the docstring of each field of a section, fields of its base classes included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Section):
            found.update(_docstrings(base))
    return found


def _docstrings(cls: type[Section]) -> Iterator[tuple[str, str]]:
    try:
        definition = ast.parse(dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):  # made for an entry point
        return
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
