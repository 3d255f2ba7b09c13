"""Parameters of functions and classes of user code, read from the file or from the imported object."""

import ast
import inspect
from abc import ABCMeta
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from paceline.config.definitions import definition_of
from paceline.config.hints import nearest
from paceline.errors import Problem


@dataclass(frozen=True)
class Parameters:
    """Parameters that a call accepts by name."""

    names: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Names of the parameters without a default."""


def argument_problems(
    target: Any, args: Collection[Any], added: Collection[str] = (), positional: int = 0
) -> list[Problem]:
    """Return problems of the argument names in a config; empty if the parameters cannot be determined.

    Args:
        target: a valid import path, or the Python object.
        args: names of the arguments in the config.
        added: names of arguments that need not be in the config, since Paceline or an axis of a sweep provides them.
        positional: number of leading arguments that Paceline passes by position.
    """
    taken = parameters_of(target)
    if taken is None:
        return []
    by_position = taken.names[:positional]
    taken = Parameters(taken.names[positional:], tuple(name for name in taken.required if name not in by_position))
    called = target.partition(":")[2] if isinstance(target, str) else getattr(target, "__name__", "it")
    unknown = [str(name) for name in args if name not in taken.names]
    free = [name for name in taken.names if name not in args and name not in added]
    missing = [name for name in taken.required if name in free]
    return [_unknown(called, name, free, taken) for name in unknown] + [
        Problem("missing-key", f"is missing: {called}() needs it", f"args.{name}", hint=f"write args: {{{name}: ...}}")
        for name in missing
    ]


def _unknown(called: str, name: str, free: list[str], taken: Parameters) -> Problem:
    near = nearest(name, free) or nearest(name, list(taken.names))
    if near:
        hint = f"did you mean {near}?"
    else:
        hint = f"it takes {', '.join(taken.names)}" if taken.names else "it takes no arguments: leave args out"
    return Problem("unknown-key", f"{called}() takes no such argument", f"args.{name}", hint=hint)


def parameters_of(target: Any) -> Parameters | None:
    """Return the parameters of a function or class, found without running its code.

    None if they cannot be determined: it accepts any names, has decorators, or may be a different object once its
    module is imported.
    """
    found = definition_of(target) if isinstance(target, str) else target
    return _of_node(found) if isinstance(found, ast.AST) else _of_object(found)


def _of_node(node: ast.AST) -> Parameters | None:
    if isinstance(node, ast.FunctionDef):
        return _of_function(node)
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return None
    own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__")]
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    if "__init__" in names or "__new__" in names:
        return None
    if not own:
        return None if node.bases else Parameters(())
    is_plain = len(own) == 1 and own[0].name == "__init__"
    return _of_function(own[0], is_method=True) if is_plain else None


def _of_function(node: ast.FunctionDef, is_method: bool = False) -> Parameters | None:
    taken = node.args
    if node.decorator_list or taken.kwarg or taken.posonlyargs or (is_method and not taken.args):
        return None
    names = [each.arg for each in taken.args]
    required = names[: len(names) - len(taken.defaults)]
    keywords = list(zip(taken.kwonlyargs, taken.kw_defaults, strict=True))
    required += [each.arg for each, default in keywords if default is None]
    names += [each.arg for each, _ in keywords]
    return Parameters(tuple(names[is_method:]), tuple(required[is_method:]))


def _of_object(found: Any) -> Parameters | None:
    skipped = 0
    if isinstance(found, type):
        made_by: list[Any] = [getattr(found, name) for name in ("__new__", "__init__")]
        if type(found) not in (type, ABCMeta) or made_by[0] is not object.__new__:
            return None
        if made_by[1] is object.__init__:
            return Parameters(())
        found, skipped = made_by[1], 1
    if not isinstance(found, FunctionType | MethodType | partial):
        return None
    try:
        # the wrapped function may take other arguments than the wrapper
        taken = list(inspect.signature(found, follow_wrapped=False).parameters.values())[skipped:]
    except (TypeError, ValueError):
        return None
    if any(each.kind in (each.VAR_KEYWORD, each.POSITIONAL_ONLY) for each in taken):
        return None
    named = [each for each in taken if each.kind != each.VAR_POSITIONAL]
    required = tuple(each.name for each in named if each.default is each.empty)
    return Parameters(tuple(each.name for each in named), required)
