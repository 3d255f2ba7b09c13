"""The codes of errors, warnings and findings in the source, found by a walk over its syntax trees."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from support.syntax_trees import nodes, parsed

CODE = "code"
UNSEEN = {"BrokenCheckpoint", "Difference", "Note", "_note"}
"""What takes a code that no message ends with: reasons inside a message, differences between runs, notes."""
RULES = "linting/rules"
"""Folder of lint's rules: the code of a finding is the name of the function that found it."""
Places = Mapping[str, set[str]]
"""Each code, with the `file:line` of each use."""


def codes_in(package: Path) -> Places:
    """Return the codes that messages of a package end with."""
    sources = {file: file.read_text() for file in sorted(package.rglob("*.py"))}
    positions = _positions(sources.values())
    found: dict[str, set[str]] = defaultdict(set)
    for file, source in sources.items():
        used = [*_used(source, positions), *(_rules(source) if RULES in file.as_posix() else ())]
        for line, code in used:
            found[code].add(f"{file.relative_to(package)}:{line}")
    return found


def warnings_without_code(package: Path) -> list[str]:
    """Return the `file:line` of each event `warning` that has no code."""
    found = []
    for file in sorted(package.rglob("*.py")):
        for node in nodes(file.read_text(), ast.Call):
            if _name(node) in ("event", "tell") and _is_warning(node):
                details = [key for each in node.args if isinstance(each, ast.Dict) for key in each.keys]
                named = {each.arg for each in node.keywords} | {ast.unparse(key) for key in details if key}
                if not named & {CODE, repr(CODE)}:
                    found.append(f"{file.relative_to(package)}:{node.lineno}")
    return found


def _is_warning(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == "warning"


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case other:
            return ast.unparse(other)


def _positions(sources: Iterable[str]) -> dict[str, int]:
    """Position of the argument `code` of each function and class that takes it, inherited by subclasses."""
    bases: dict[str, list[str]] = {}
    found: dict[str, int] = {}
    for source in sources:
        for node in nodes(source, ast.ClassDef):
            taken = _parameters(node)
            if taken is None:
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            elif CODE in taken:
                found[node.name] = taken.index(CODE)
        for each in nodes(source, ast.FunctionDef):
            names = [argument.arg for argument in each.args.args if argument.arg != "self"]
            if CODE in names and each.name not in ("__init__", "__new__"):
                found[each.name] = names.index(CODE)
    for name in UNSEEN & found.keys():
        del found[name]
    while new := {name: found[base] for name in bases.keys() - found for base in bases[name] if base in found}:
        found |= new
    return found


def _parameters(node: ast.ClassDef) -> list[str] | None:
    """Parameters of a class: of its `__init__`, or its fields. None: it has those of its base."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return [argument.arg for argument in each.args.args[1:]]
    fields = [
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    return fields or None


def _used(source: str, positions: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    assigned: dict[str, list[ast.expr]] = defaultdict(list)
    for assignment in nodes(source, ast.Assign):
        if isinstance(assignment.targets[0], ast.Name):
            assigned[assignment.targets[0].id].append(assignment.value)
    for node in nodes(source, ast.Call, ast.ClassDef, ast.Dict, ast.FunctionDef, ast.Assign):
        for value in _values_of_code(node, positions):
            yield from ((value.lineno, text) for text in _texts(value, assigned) if text)


def _values_of_code(node: ast.AST, positions: Mapping[str, int]) -> Iterator[ast.expr]:
    """The expressions of a node that are codes."""
    match node:
        case ast.Call() if _name(node) not in UNSEEN:
            position = positions.get(_name(node))
            yield from (each.value for each in node.keywords if each.arg == CODE)
            yield from node.args[position : position + 1] if position is not None else ()
        case ast.ClassDef():
            # super().__init__ of a class of errors takes what its base takes
            position = next((positions[name] for base in node.bases if (name := ast.unparse(base)) in positions), None)
            for call in ast.walk(node) if position is not None else ():
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__":
                    yield from call.args[position:][:1]
        case ast.Dict():
            yield from (
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == CODE
            )
        case ast.FunctionDef():
            arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            pairs = zip(arguments, node.args.defaults, strict=True)
            yield from (default for argument, default in pairs if argument.arg == CODE)
            for each in ast.walk(node) if node.name in (f"_{CODE}", "notices") else ():
                if isinstance(each, ast.Return) and each.value and node.name == f"_{CODE}":
                    yield each.value
                if isinstance(each, ast.Yield) and isinstance(each.value, ast.Tuple) and node.name == "notices":
                    yield each.value.elts[0]
        case ast.Assign(targets=[target]):
            match target, node.value:
                case ast.Attribute(attr="code"), value:
                    yield value
                case ast.Tuple(elts=[ast.Attribute(attr="code"), *_]), ast.Tuple(elts=[value, *_]):
                    yield value


def _texts(value: ast.expr, assigned: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """The texts that an expression may have: through conditions, `or`, and names that are assigned in the module."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from [*_texts(value.body, assigned), *_texts(value.orelse, assigned)]
        case ast.BoolOp():
            yield from (text for each in value.values for text in _texts(each, assigned))
        case ast.Name():
            yield from (text for each in assigned[value.id] for text in _texts(each, {**assigned, value.id: []}))


def _rules(source: str) -> Iterator[tuple[int, str]]:
    for node in parsed(source).body:
        is_rule = isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Iterator[Fault]"
        if is_rule and not node.name.startswith("_"):
            yield node.lineno, node.name.replace("_", "-")
