"""Private names of Ray, torch and MLflow: where code uses them, and whether the installed versions have them."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from support.syntax_trees import parsed

LIBRARIES = ("mlflow", "ray", "torch", "torchvision")


def is_private(name: str) -> bool:
    """Whether it begins with one underscore."""
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def is_library_path(path: str) -> bool:
    """Whether it is a dotted path into one of the libraries."""
    return path.partition(".")[0] in LIBRARIES


def private_paths(paths: Iterable[str]) -> set[str]:
    """The paths and what they go through, as far as a private name is in it: `torch._a.b` gives `torch._a` too."""
    parts = (path.split(".") for path in paths)
    prefixes = {tuple(each[: end + 1]) for each in parts for end in range(len(each))}
    return {".".join(prefix) for prefix in prefixes if any(map(is_private, prefix))}


# Use in code


class Use(NamedTuple):
    """One use of a name."""

    name: str
    """Dotted path into a library where that is known; else the private name alone."""
    line: int
    is_path: bool = False
    is_text: bool = False
    """Whether it stands in quotes, and may be anything."""
    is_own: bool = False
    """Whether it is an attribute of `self` or `cls`, or the own name of a method or class attribute."""


def uses(source: str) -> list[Use]:
    """Every use of a private name in a piece of code, and every path into a library that has one."""
    finder = _Finder()
    finder.visit(parsed(source))
    return [use for use in finder.found if any(map(is_private, use.name.split(".")))]


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Use] = []
        self._scopes: list[dict[str, str | None]] = [{}]
        """Per function: the library path behind a name, or None where it is something else."""

    def _add(self, name: str, node: ast.AST, **kind: bool) -> None:
        self.found.append(Use(name, node.lineno, **kind))  # type: ignore[attr-defined]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if is_library_path(alias.name):
                self._add(alias.name, node, is_path=True)
            name = alias.asname or alias.name.partition(".")[0]
            self._bind(name, alias.name if alias.asname else name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            path = f"{node.module}.{alias.name}"
            if is_library_path(path):
                self._add(path, node, is_path=True)
            self._bind(alias.asname or alias.name, path)

    def _bind(self, name: str, path: str | None) -> None:
        self._scopes[-1][name] = path if path is not None and is_library_path(path) else None

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self._scopes.append({each.arg: None for each in named if each is not None})
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815
    visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and is_private(each.name):
                self._add(each.name, each, is_own=True)
            for target in each.targets if isinstance(each, ast.Assign) else ():
                if isinstance(target, ast.Name) and is_private(target.id):
                    self._add(target.id, each, is_own=True)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            names.insert(0, root.attr)
            root = root.value
        path = self._path(root)
        if path is not None:
            self._add(".".join([path, *names]), node, is_path=True)
            return
        is_self = isinstance(root, ast.Name) and root.id in ("self", "cls")
        for place, name in enumerate(names):
            if is_private(name):
                self._add(name, node, is_own=is_self and place == 0)
        self.visit(root)

    def _path(self, root: ast.expr) -> str | None:
        if not isinstance(root, ast.Name):
            return None
        return next((scope[root.id] for scope in reversed(self._scopes) if root.id in scope), None)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None and is_private(node.arg):
            self._add(node.arg, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name):
                self._add(name, node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        if is_private(node.value.removesuffix(".")):
            self._add(node.value.removesuffix("."), node, is_text=True)
        elif re.fullmatch(r"\w+(\.\w+)+", node.value) and is_library_path(node.value):
            self._add(node.value, node, is_path=True)


# The installed versions

Samples = Mapping[str, Callable[[], Any]]
"""Objects to look at in the place of a class or function, by its path: what instances have, or what calls return."""


class Contract:
    """The private names that a module of `_compat` declares, on the installed version.

    Args:
        declared: the module's `PRIVATE`.
        behaviour: checks beyond existence, by path; those of a path with some object in place of it.
    """

    def __init__(self, declared: Iterable[str], samples: Samples, behaviour: Mapping[str, Callable[[], None]]) -> None:
        self.names = sorted(private_paths(declared))
        self._samples = {path: lru_cache(make) for path, make in samples.items()}
        self.behaviour = behaviour

    def missing(self) -> list[str]:
        """Names that are not there, without those below them."""
        gone = [name for name in self.names if not self.exists(name)]
        return [name for name in gone if name.rpartition(".")[0] not in gone]

    def exists(self, path: str) -> bool:
        """Whether there is something at a path."""
        try:
            self.find(path)
        except (AttributeError, ImportError):
            return False
        return True

    def find(self, path: str) -> Any:
        """What is at a path."""
        owner_path, _, name = path.rpartition(".")
        if not owner_path:
            return import_module(path)
        owner = self.find(owner_path)
        if owner_path in self._samples:
            owner = self._samples[owner_path]()
        try:
            return getattr(owner, name)
        except AttributeError:
            return import_module(path)

    def check(self, name: str) -> None:
        """Fail if a name is not there, or does not do what is relied on. Skip what another missing name explains."""
        missing = self.missing()
        assert name not in missing
        if missing:
            pytest.skip(f"{missing} are missing")
        self.behaviour.get(name, lambda: None)()

    def owner(self, path: str) -> tuple[Any, str]:
        """The object that has a name itself, and the name, to take it away."""
        owner_path, _, name = path.rpartition(".")
        owner = self.find(owner_path)
        holders: Iterator[Any] = (each for each in getattr(owner, "__mro__", (owner,)) if name in vars(each))
        return next(holders), name


class ContractTests:
    """The tests of a library's contract, for a file of `tests/system/compat`."""

    contract: Contract
    renamed: tuple[str, ...]
    """Names that are taken away to see that their cases fail: of modules, classes and functions."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        names = {"name": self.contract.names, "renamed_name": self.renamed}
        for fixture in names.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(fixture, names[fixture])

    def test_private_name(self, name: str) -> None:
        self.contract.check(name)

    def test_every_behaviour_belongs_to_a_name(self) -> None:
        assert self.contract.behaviour.keys() <= set(self.contract.names)

    def test_a_rename_fails_one_case(self, renamed_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.contract.missing() == []
        monkeypatch.delattr(*self.contract.owner(renamed_name))
        assert self.contract.missing() == [renamed_name]
