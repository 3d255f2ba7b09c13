"""`python.md`: the public names of `paceline`, from their signatures and docstrings, read without importing them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import paceline
from generators.markdown import HEAD, paragraphs

INTRODUCTION = """\
`import paceline` imports neither torch nor Ray: each name is imported when it is first used. Everything that is not on
this page may change without notice."""
FOLDER = Path(paceline.__file__).parent
FINDINGS = {
    "paceline.batch_scaling.findings": (
        "ScaleFindings",
        "TargetMetric",
        "ScaleRow",
        "Verification",
        "LargerBatchCheck",
    ),
    "paceline.batch_scaling.critical_batch": ("CriticalBatch", "Branch"),
    "paceline.batch_scaling.lr_rules": ("LrRules",),
    "paceline.tuneups.outcome": ("Findings", "TechniqueResult", "Quality"),
}
"""Classes of what the results of studies hold, by module."""


def page() -> str:
    """Return the whole page."""
    names = [name for name in paceline.__all__ if not name.startswith("_")]
    found = {name: _definition(paceline._HOMES[name], name) for name in names}
    functions = [name for name in names if isinstance(found[name][1], ast.FunctionDef)]
    classes = [name for name in names if name not in functions]
    lines = ["# Python", "", HEAD, "", INTRODUCTION, "", "## Functions"]
    for name in functions:
        lines += _function(found[name][1], f"paceline.{name}", 3)
    lines += ["", "## Classes"]
    for name in classes:
        lines += _class(*found[name])
    lines += ["", "## Findings", "", "The results of `scale` and `tuneup` hold these in `findings`."]
    for module, held in FINDINGS.items():
        for name in held:
            lines += _class(*_definition(module, name), f"{module}.{name}")
    return "\n".join([*lines, ""])


@cache
def _tree(module: str) -> ast.Module:
    file = FOLDER.parent / Path(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.parse(file.read_text())


def _definition(module: str, name: str) -> tuple[str, ast.stmt]:
    """Return the module and the statement that define a name, through the modules that import it."""
    for statement in ast.walk(_tree(module)):
        match statement:
            case ast.FunctionDef() | ast.ClassDef() if statement.name == name and statement in _tree(module).body:
                return module, statement
            case ast.ImportFrom(module=str(other), names=aliases) if other.startswith("paceline."):
                for alias in aliases:
                    if (alias.asname or alias.name) == name:
                        return _definition(other, alias.name)
    raise LookupError(f"{module} has no {name}")


def _function(statement: ast.stmt, title: str, level: int) -> Iterator[str]:
    assert isinstance(statement, ast.FunctionDef)
    yield from ["", f"{'#' * level} {title}", "", "```python no-run", *_signature(statement), "```"]
    yield from ["", *paragraphs(ast.get_docstring(statement) or "")]


def _signature(statement: ast.FunctionDef) -> list[str]:
    """Return a function's signature, an argument a line where it is long."""
    arguments = ast.unparse(statement.args)
    returns = f" -> {_annotation(statement.returns)}" if statement.returns else ""
    whole = f"def {statement.name}({arguments}){returns}: ..."
    if len(whole) <= 100:
        return [whole]
    lines = [f"    {each}," for each in _each_argument(statement.args)]
    return [f"def {statement.name}(", *lines, f"){returns}: ..."]


def _each_argument(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    for index, argument in enumerate(positional):
        default = arguments.defaults[index - missing] if index >= missing else None
        yield _with_default(argument, default)
    if arguments.kwonlyargs and not arguments.vararg:
        yield "*"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _with_default(argument, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _with_default(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) if default is None else f"{ast.unparse(argument)} = {ast.unparse(default)}"


def _annotation(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _class(module: str, statement: ast.stmt, title: str = "") -> Iterator[str]:
    assert isinstance(statement, ast.ClassDef)
    bases = ", ".join(ast.unparse(base) for base in statement.bases)
    yield from ["", f"### {title or f'paceline.{statement.name}'}", "", "```python no-run"]
    yield from [f"class {statement.name}({bases}): ..." if bases else f"class {statement.name}: ...", "```"]
    yield from ["", *paragraphs(ast.get_docstring(statement) or "")]
    members: dict[str, list[str]] = {}
    for _, each in reversed([(module, statement), *_bases(module, statement)]):
        members |= dict(_members(each))
    if members:
        yield ""
    for lines in members.values():
        yield from lines


def _bases(module: str, statement: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Return the base classes that the package defines, but the schema's: its fields have a page of their own."""
    for base in statement.bases:
        name = ast.unparse(base)
        try:
            other, found = _definition(module, name)
        except LookupError:
            continue
        if isinstance(found, ast.ClassDef) and name not in ("ExperimentSchema", "Section"):
            yield other, found
            yield from _bases(other, found)


def _members(statement: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    """Return the documented public attributes, properties and methods of a class, each as an item of a list."""
    for member, after in zip(statement.body, [*statement.body[1:], None], strict=True):
        text = _text_below(after)
        match member:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield name, _item(f"{name}: {_annotation(member.annotation)}", text)
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield name, _item(f"{name} = {ast.unparse(member.value)}", text)
            case ast.FunctionDef(name="__init__"):
                yield from _attributes(member)
            case ast.FunctionDef(name=name) if not name.startswith("_"):
                yield name, _item(_called(member), ast.get_docstring(member) or "")


def _text_below(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def _attributes(initialiser: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    """Return the public attributes that `__init__` sets."""
    for member, after in zip(initialiser.body, [*initialiser.body[1:], None], strict=True):
        match member:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]) if not name.startswith("_"):
                yield name, _item(name, _text_below(after))


def _called(member: ast.FunctionDef) -> str:
    returns = f" -> {_annotation(member.returns)}" if member.returns else ""
    decorators = {ast.unparse(each) for each in member.decorator_list}
    if decorators & {"property", "cached_property"}:
        return f"{member.name}{returns.replace(' -> ', ': ', 1)}"
    arguments = ast.unparse(member.args)
    for first in ("self, ", "self", "cls, ", "cls"):
        if arguments.startswith(first):
            arguments = arguments.removeprefix(first)
            break
    return f"{member.name}({arguments}){returns}"


def _item(head: str, text: str) -> list[str]:
    first, *rest = paragraphs(text) or [""]
    lines = [f"- `{head}`" + (f": {first}" if first else "")]
    return [*lines, *(f"    {line}".rstrip() for line in rest)]
