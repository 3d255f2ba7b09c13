"""Parts of a Python object: its code, and everything in its module that the code refers to."""

import dis
import inspect
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from pathlib import PurePath
from types import CodeType, MethodType, SimpleNamespace
from typing import Any

import torch

MAIN = ("__main__", "__mp_main__")
PLAIN = (str, bytes, int, float, complex, bool, type(None), Enum, PurePath, torch.dtype, torch.device)
SPACES = (Namespace, SimpleNamespace)
LONGEST = 1000
"""Most items of a collection that are read. Of a longer one only the length is read: it is data, not a setting."""


def parts_of(target: Any, with_files: Collection[str]) -> dict[str, str]:
    """Return texts by the name of each function, class or global of the module that the target refers to. They are the
    same in every process, and differ if the object's behaviour differs.

    Args:
        target: a callable.
        with_files: modules whose code is compared by their files, or need not be compared.
    """
    home = _module_of(target)
    reader = _Reader(MAIN if home in with_files else (home, *MAIN))
    reader.read(target, "arguments")
    return {name: "\n".join(texts) for name, texts in reader.parts.items()}


def _module_of(target: Any) -> str:
    while isinstance(target, partial):
        target = target.func
    with suppress(ValueError):  # it invents attributes without end
        target = inspect.unwrap(target)
    return str(getattr(target, "__module__", ""))


class _Reader:
    def __init__(self, modules: Collection[str]) -> None:
        self._modules = modules
        self._seen: dict[int, Any] = {}
        self.parts: dict[str, list[str]] = defaultdict(list)

    def read(self, value: Any, place: str) -> None:
        """Read a value with everything that it contains, as far as possible.

        Args:
            place: part that refers to the value.
        """
        if isinstance(value, PLAIN):
            self.parts[place].append(repr(value))
        elif isinstance(value, tuple):
            self._read_all(value, place)
        else:
            with suppress(Exception):
                self.parts[place].append(_name_of(value))
                self._read_once(value, place)

    def _read_once(self, value: Any, place: str) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept alive, so that its `id` is not reused
        if isinstance(value, partial):
            self._read_all((value.func, value.args, value.keywords), place)
        elif isinstance(value, Mapping):
            self._read_all([each for pair in value.items() for each in pair], place)
        elif isinstance(value, list):
            self._read_all(value, place)
        elif isinstance(value, set | frozenset):
            self._read_all(sorted(value, key=_name_of), place)
        elif isinstance(value, MethodType):
            self._read_all((value.__func__, value.__self__), place)
        elif isinstance(value, SPACES):
            self.read(vars(value), place)
        else:
            self._read_code(value, place)
            if hasattr(value, "__wrapped__"):
                self.read(value.__wrapped__, place)

    def _read_all(self, values: Collection[Any], place: str) -> None:
        self.parts[place].append(f"{len(values)} values")
        if len(values) <= LONGEST:
            for each in values:
                self.read(each, place)

    def _read_code(self, value: Any, place: str) -> None:
        """Read a function, a class, or an object of one; from another module, only the variables of its closure."""
        kind = _kind_of(value)
        name = kind.__qualname__
        if kind.__module__ not in self._modules:
            self._read_cells(kind, place)
        elif hasattr(kind, "__code__"):
            self._read_function(kind, name)
        elif kind is value:
            self._read_class(kind, name)
        else:
            self.read(kind, place)
            self.read({key: each for key, each in vars(value).items() if isinstance(each, PLAIN)}, place)

    def _read_class(self, kind: type, name: str) -> None:
        self._read_all(kind.__bases__, name)
        for key, member in sorted(vars(kind).items()):
            functions = list(_functions_of(member))
            for function in functions:
                self._read_function(function, name)
            if not functions and not key.startswith("__"):
                self.read(key, name)
                self.read(member, name)

    def _read_function(self, function: Any, name: str) -> None:
        stored: set[str] = set()
        taken: set[str] = set()
        for code in _nested(function.__code__):
            self.parts[name].append(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars)))
            self._read_all([each for each in code.co_consts if not isinstance(each, CodeType)], name)
            taken |= set(_globals_of(code, "LOAD_GLOBAL", "LOAD_NAME"))
            stored |= set(_globals_of(code, "STORE_GLOBAL", "DELETE_GLOBAL"))
        for key in sorted((taken - stored) & function.__globals__.keys()):
            self.read(function.__globals__[key], key)
        self._read_cells(function, name)
        self.read(function.__defaults__, name)
        self.read(function.__kwdefaults__, name)

    def _read_cells(self, function: Any, name: str) -> None:
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # the cell is still empty
                self.read(cell.cell_contents, name)


def _kind_of(value: Any) -> Any:
    """Return the value itself if it is a function or a class, else its class."""
    return value if isinstance(value, type) or hasattr(value, "__code__") else type(value)


def _name_of(value: Any) -> str:
    """Return a sort key for the members of a set, whose order differs between processes."""
    if isinstance(value, (*PLAIN, tuple)):
        return repr(value)
    kind = _kind_of(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _functions_of(member: Any) -> Iterator[Any]:
    """Yield the functions that a member of a class consists of."""
    if isinstance(member, property):
        found = [member.fget, member.fset, member.fdel]
    elif isinstance(member, cached_property):
        found = [member.func]
    else:
        found = [getattr(member, "__func__", member)]
    return (each for each in found if isinstance(getattr(each, "__code__", None), CodeType))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _globals_of(code: CodeType, *operations: str) -> Iterator[str]:
    return (each.argval for each in dis.get_instructions(code) if each.opname in operations)
