"""Digests of the user's own code, so that a tune-up is not gone on with when it has changed.

Modules are told by their files, and the Python objects that stand in a config in place of an import path by their code,
since what a script or a notebook defines has no file that is theirs alone. Comments, blank lines and places do not
count.
"""

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import is_path, objects_in, spec_of
from paceline.config.own_arms import own_arms
from paceline.study.own_files import is_own

MAIN = ("__main__", "__mp_main__")


def own_digests(config: ExperimentConfig) -> dict[str, str]:
    """By name: the user's modules that are imported in this process, those that the techniques of `tuneup.arms` take in
    their place, and the sections of the config that hold Python objects."""
    digests = {name: _digest(_meaning(source)) for name, source in _sources(config)}
    for section, target in objects_in(config.model_dump()).items():
        with suppress(Exception):  # what it refers to may be anything, and raise anything when looked at
            reader = _Reader(target)
            reader.read(target)
            digests[section] = _digest("\n".join(reader.parts))
    return digests


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources(config: ExperimentConfig) -> Iterator[tuple[str, bytes]]:
    loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    for name, file in {**_files_of_arms(config), **loaded}.items():
        if name not in MAIN and isinstance(file, str) and file.endswith(".py") and is_own(file):
            with suppress(OSError):
                yield name, Path(file).read_bytes()


def _files_of_arms(config: ExperimentConfig) -> dict[str, str | None]:
    """Of the modules that may not be imported before a technique is measured."""
    sections = (section for _, changed in own_arms(config) for section in changed.model_dump().values())
    paths = [section.get("path") for section in sections if isinstance(section, dict)]
    files = {}
    for name in {str(path).partition(":")[0] for path in paths if is_path(path)}:
        with suppress(ImportError, KeyError, ValueError):
            spec = spec_of(name)
            files[name] = spec.origin if spec else None
    return files


def _meaning(source: bytes) -> str:
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return repr(source)


class _Reader:
    """Reads what callables of one module do, with all that they take from it."""

    def __init__(self, target: Any) -> None:
        while isinstance(target, partial):
            target = target.func
        self._module = getattr(_unwrapped(target), "__module__", None)
        self._seen: set[int] = set()
        self.parts: list[str] = []

    def read(self, value: Any) -> None:
        """A callable, or a plain value; what is of another module is none of it."""
        if isinstance(value, partial):
            for part in (value.func, value.args, value.keywords):
                self.read(part)
        elif callable(value):
            self._read_callable(_unwrapped(value))
        else:
            with suppress(TypeError, ValueError, RecursionError):
                self.parts.append(json.dumps(value, sort_keys=True))

    def _read_callable(self, target: Any) -> None:
        if getattr(target, "__module__", None) != self._module or id(target) in self._seen:
            return
        self._seen.add(id(target))
        if hasattr(target, "__code__"):
            self._read_function(target)
        else:
            self._read_class(target if isinstance(target, type) else type(target))

    def _read_class(self, kind: type) -> None:
        for base in kind.__bases__:
            self.read(base)
        for name, member in vars(kind).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(getattr(function, "__code__", None), CodeType):
                self._read_function(function)
            elif not name.startswith("__"):
                self.read(member)

    def _read_function(self, function: Any) -> None:
        names = set()
        for code in _nested(function.__code__):
            constants = [repr(_ordered(each)) for each in code.co_consts if not isinstance(each, CodeType)]
            self.parts.append(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)))
            names |= set(code.co_names)
        for name in sorted(names & function.__globals__.keys()):
            self.read(function.__globals__[name])
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is empty as yet
                self.read(cell.cell_contents)
        self.read(function.__defaults__)
        self.read(function.__kwdefaults__)


def _unwrapped(target: Any) -> Any:
    with suppress(ValueError):  # it makes up attributes without end
        return inspect.unwrap(target)
    return target


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _ordered(constant: Any) -> Any:
    """Sets have another order in each process."""
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
