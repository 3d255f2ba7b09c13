"""Private API of Ray, torch and MLflow is used in `paceline/_compat` alone, and declared there."""

import ast
import builtins
from pathlib import Path

import pytest

import paceline
from support.private_names import Use, is_private, private_paths, uses
from support.syntax_trees import nodes, parsed

PACKAGE = Path(paceline.__file__).parent
COMPAT = PACKAGE / "_compat"
MODULES = sorted(PACKAGE.rglob("*.py"))
OTHERS = [file for file in MODULES if COMPAT not in file.parents]
LIBRARIES = ("mlflow", "ray", "torch")

STANDARD_LIBRARY = {
    "_exit": "os",
    "_getframe": "sys",
    "_data": "os.environ",
    "_fields": "namedtuple",
    "_replace": "namedtuple",
    "_filters_mutated": "warnings",
    "_initializing": "ModuleSpec",
    "_lru_cache_wrapper": "functools",
    "_repr_png_": "IPython",
    "_run_exitfuncs": "atexit",
    "_shutdown": "threading",
}
"""Private or public in spite of their underscore, and none of the three libraries'."""


def defined(source: str) -> set[str]:
    """Private names that code gives to objects of its own: methods, fields, attributes of `self`, and parameters."""
    names: set[str] = set()
    for node in nodes(source, ast.ClassDef):
        names.update(each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target]
            for each in node.body
            if isinstance(each, ast.Assign | ast.AnnAssign)
        )
        names.update(each.id for several in targets for each in several if isinstance(each, ast.Name))
    names.update(each.arg for each in nodes(source, ast.arg))
    attributes = nodes(source, ast.Attribute)
    names.update(each.attr for each in attributes if isinstance(each.ctx, ast.Store) and _is_self(each.value))
    return {name for name in names if is_private(name)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def library_classes(source: str) -> list[ast.ClassDef]:
    """Classes with a base that is neither a builtin nor defined in the same file or imported from the package."""
    classes = nodes(source, ast.ClassDef)
    own = {node.name for node in classes} | set(vars(builtins))
    for node in nodes(source, ast.ImportFrom):
        if (node.module or "").startswith("paceline"):
            own.update(alias.asname or alias.name for alias in node.names)
    return [node for node in classes if any(ast.unparse(base) not in own for base in node.bases)]


def breaches(source: str, known: set[str], declared: set[str]) -> list[str]:
    """Uses of private names that are a library's.

    Args:
        known: private names that the package defines itself.
        declared: last parts of the names in `_compat`. A class of our own may have one, unless it derives from a
            library's.
    """
    inside = {line for each in library_classes(source) for line in range(each.lineno, (each.end_lineno or 0) + 1)}

    def is_breach(use: Use) -> bool:
        if use.is_path or (use.name in declared and (not use.is_own or use.line in inside)):
            return True
        return not use.is_text and use.name not in known | set(STANDARD_LIBRARY)

    return sorted({f"{use.line}: {use.name}" for use in uses(source) if is_breach(use)})


def _is_declaration(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "PRIVATE"


def declared_in(library: str) -> tuple[str, ...]:
    """The `PRIVATE` of one of the files, without running it."""
    for node in parsed((COMPAT / f"{library}.py").read_text()).body:
        if isinstance(node, ast.Assign) and _is_declaration(node):
            return ast.literal_eval(node.value)  # type: ignore[no-any-return]
    raise AssertionError(f"{library}.py declares nothing")


DECLARED = {path.rpartition(".")[2] for library in LIBRARIES for path in declared_in(library)}


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Private names that the package defines."""
    return {name for file in OTHERS for name in defined(file.read_text())}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "def f():\n    from ray._private.state import state",
        "import torch\n\ndef f():\n    torch._dynamo.reset()",
        "import mlflow as m\nm.tracking._x",
        "def f(module):\n    return module._parameters",
        "import ray\nray.init(_temp_dir='x')",
        "def f(store):\n    return getattr(store, '_engine_map', {})",
        "import sys\nsys.modules.get('ray._private.ray_constants')",
        "from torch.nn.parallel import DistributedDataParallel as D\nclass R(D):\n    def _sync_buffers(self): ...",
        "from ray.tune.schedulers import MedianStoppingRule\nclass R(MedianStoppingRule):\n"
        "    def replay(self):\n        self._results.clear()",
    ],
)
def test_a_planted_use_is_found(source: str, known: set[str]) -> None:
    assert breaches(source, known, DECLARED)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(1)",
        "from paceline.tasks._task import Task",
        "class A:\n    def __init__(self):\n        self._results = {}\n    def f(self):\n        return self._results",
        "from paceline._compat.torch import foreach_add\nforeach_add([], [])",
    ],
)
def test_what_is_public_or_our_own_is_not(source: str, known: set[str]) -> None:
    assert breaches(source, known | defined(source), DECLARED) == []


def test_only_compat_uses_private_api(known: set[str]) -> None:
    assert len(OTHERS) > 100
    found = {str(file.relative_to(PACKAGE)): breaches(file.read_text(), known, DECLARED) for file in OTHERS}
    assert {file: names for file, names in found.items() if names} == {}


# The declarations


def undeclared(source: str, declared: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Names in use that are not declared, and declared ones that are not in use."""
    found = uses(source)
    paths = private_paths(use.name for use in found if use.is_path)
    names = {use.name for use in found if not use.is_path}
    parts = {part for path in declared for part in path.split(".") if is_private(part)}
    unused = {path for path in declared if path not in paths and not set(path.split(".")) & names}
    return (paths - private_paths(declared)) | (names - parts), unused


def without_declaration(source: str) -> str:
    """The code of a file of `_compat` without its `PRIVATE`."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.Assign) and _is_declaration(node))]
    return ast.unparse(tree)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_private_name_in_use_is_declared(library: str) -> None:
    declared = declared_in(library)
    assert list(declared) == sorted(set(declared))
    assert {path.partition(".")[0] for path in declared} == {library}
    source = without_declaration((COMPAT / f"{library}.py").read_text())
    assert undeclared(source, declared) == (set(), set())
    planted = f"{source}\n\ndef planted(module):\n    import torch._lazy\n    return module._planted"
    assert undeclared(planted, declared)[0] == {"torch._lazy", "_planted"}
    assert undeclared(source, (*declared, f"{library}.Planted._forgotten"))[1] == {f"{library}.Planted._forgotten"}
