"""Who may import whom: the rooms of the package from top to bottom, and no module itself through others."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.syntax_trees import nodes, parsed

PACKAGE = Path(__file__).resolve().parents[2] / "platform" / "paceline"
COMPONENTS = ("models", "data", "tasks", "adapters", "optimizers", "lr_schedulers", "metrics", "callbacks")
HEAVY = ("torch", "torchvision", "ray", "mlflow")
ENGINE = ("paceline.engine", "paceline.tracking")
RUNS = ("paceline.cluster", "paceline.sweeps", "paceline.cli")
ANSWERS = ("paceline.linting", "paceline.memory", "paceline.profiling")

FORBIDDEN = {
    "explanations": (*HEAVY, "paceline"),
    "_compat": (*ENGINE, *RUNS, *ANSWERS, "paceline.config", "paceline.runs", "paceline.tuneups"),
    "config": (*HEAVY, *ENGINE, *RUNS, *(f"paceline.{room}" for room in COMPONENTS)),
    **dict.fromkeys(COMPONENTS, ("ray", "mlflow", *ENGINE, "paceline.cluster")),
    "engine": ("ray", "mlflow", "paceline.storage", "paceline.tracking", *RUNS),
    "tracking": (
        *("torch", "torchvision", "ray", "paceline.engine", *RUNS, "paceline.storage"),
        *(f"paceline.{room}" for room in COMPONENTS),
    ),
    "storage": ("torch", "ray", "mlflow", *RUNS),
    "reports": (
        *(*HEAVY, *ENGINE, *RUNS, *ANSWERS, "paceline.storage", "paceline.config", "paceline.runs", "paceline.tuneups"),
        *(f"paceline.{room}" for room in COMPONENTS),
    ),
    "cluster": ("mlflow", "paceline.sweeps", "paceline.cli", "paceline.doctor"),
    "batch_scaling": ("mlflow", "paceline.sweeps", "paceline.tuneups", "paceline.cli", "paceline.doctor"),
    "bench": ("mlflow", "paceline.sweeps", "paceline.tuneups", "paceline.cli", "paceline.doctor"),
    "sweeps": ("mlflow", "paceline.tuneups", "paceline.cli", "paceline.doctor"),
    **dict.fromkeys(
        ("linting", "memory", "profiling"),
        ("ray", "mlflow", "paceline.sweeps", "paceline.tuneups", "paceline.cli", "paceline.doctor"),
    ),
    "tuneups": ("mlflow", "paceline.sweeps", "paceline.cli", "paceline.doctor"),
    "runs": ("ray", "paceline.engine.trainer", "paceline.cli", "paceline.doctor"),
    "cli": (*HEAVY, "paceline.engine"),
    "doctor.py": ("mlflow", "paceline.engine", "paceline.cli"),
    "__main__.py": (*HEAVY, *ENGINE, "paceline.cluster"),
    **dict.fromkeys(
        (
            *("errors.py", "direction.py", "private_files.py", "safetensors_header.py", "starting_folder.py"),
            *("full_disk.py", "garbage_collection.py", "limited_wait.py", "process_end.py", "secret_values.py"),
        ),
        (*HEAVY, "paceline"),
    ),
    **dict.fromkeys(
        ("durable.py", "redaction.py"),
        (*HEAVY, *ENGINE, *RUNS, "paceline.config", *(f"paceline.{room}" for room in COMPONENTS)),
    ),
    **dict.fromkeys(("display.py", "places.py", "__init__.py"), (*HEAVY, *ENGINE, "paceline.cli")),
}
"""What no file of a room may import."""


def imports_of(source: str) -> Iterator[str]:
    """Every module that a piece of code imports, wherever in it, and every name taken from one, as dotted paths."""
    for node in nodes(source, ast.Import):
        yield from (alias.name for alias in node.names)
    for each in nodes(source, ast.ImportFrom):
        assert each.level == 0, "imports are absolute"
        yield str(each.module)
        yield from (f"{each.module}.{alias.name}" for alias in each.names)


def breaches(source: str, forbidden: tuple[str, ...]) -> list[str]:
    """The imports that are forbidden, or below what is. The private API of a library counts as the library."""
    return [name for name in imports_of(source) if any(_is_below(name, each) for each in forbidden)]


def _is_below(name: str, package: str) -> bool:
    return f"{name.removeprefix('paceline._compat.')}.".startswith(f"{package}.")


def room_of(file: Path) -> str:
    """The folder of a module within the package, or the file's name for those beside the rooms."""
    return file.relative_to(PACKAGE).parts[0]


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize(
    ("source", "room"),
    [
        ("def f():\n    import ray.train", "engine"),
        ("from paceline._compat.ray import preemption_info", "engine"),
        ("from paceline import cluster", "engine"),
        ("from torch import nn", "tracking"),
        ("from paceline.engine.trainer import Trainer", "tracking"),
        ("import torch.nn as nn", "config"),
        ("if TYPE_CHECKING:\n    from paceline.tasks.base import Task", "config"),
    ],
)
def test_a_planted_import_is_found(source: str, room: str) -> None:
    assert breaches(source, FORBIDDEN[room])
    assert not breaches("import rayon, torchless\nfrom paceline import errors", FORBIDDEN[room])


def test_every_room_imports_only_what_it_may() -> None:
    assert {room_of(file) for file in MODULES} == set(FORBIDDEN)
    found = {str(file.relative_to(PACKAGE)): breaches(file.read_text(), FORBIDDEN[room_of(file)]) for file in MODULES}
    assert {file: names for file, names in found.items() if names} == {}


def test_only_the_cluster_the_bench_the_sweeps_and_the_doctor_import_ray() -> None:
    importing = {room_of(file) for file in MODULES if breaches(file.read_text(), ("ray",))}
    assert {"cluster", "sweeps"} <= importing
    assert importing <= {"_compat", "cluster", "bench", "sweeps", "doctor.py"}


def test_the_command_line_imports_no_private_name() -> None:
    sources = [file.read_text() for file in (PACKAGE / "cli").glob("*.py")]
    imported = [name for source in sources for name in imports_of(source) if name.startswith("paceline")]
    assert imported
    assert [name for name in imported if any(part.startswith("_") for part in name.split("."))] == []


def module_of(file: Path) -> str:
    """The dotted name of a file of the package."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycles_in(sources: Mapping[str, str]) -> list[set[str]]:
    """Modules that import each other, directly or through others, also inside functions or for types only.

    Args:
        sources: code by the module's dotted name; only imports among these modules count.
    """
    graph = {
        name: {each for each in imports_of(code) if each in sources and each != name} for name, code in sources.items()
    }
    reached = {name: _reached(graph, name) for name in graph}
    together = {name: frozenset(each for each in found if name in reached[each]) for name, found in reached.items()}
    return [set(cycle) for cycle in set(together.values()) if cycle]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    open_ends = [start]
    while open_ends:
        new = graph[open_ends.pop()] - found
        found |= new
        open_ends += new
    return found


def test_a_planted_cycle_is_found() -> None:
    sources = {
        "a": "from b import x",
        "b": "def f():\n    import c",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import X",
        "d": "import a, e, d",
        "e": "import c",
    }
    assert cycles_in(sources) == [{"a", "b", "c"}]
    assert cycles_in({**sources, "c": "import os"}) == []


def test_no_module_imports_itself_through_others() -> None:
    # the package itself only says where its names are
    sources = {module_of(file): file.read_text() for file in MODULES if file != PACKAGE / "__init__.py"}
    assert cycles_in(sources) == []


def duplicate_classes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public classes of the same name in several modules, with the modules."""
    found: dict[str, list[str]] = {}
    for module, code in sources.items():
        for node in parsed(code).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_a_planted_duplicate_class_is_found() -> None:
    sources = {"a": "class Run: ...", "b": "class Run: ...\nclass _Own: ...", "c": "class _Own: ..."}
    assert duplicate_classes(sources) == {"Run": ["a", "b"]}


def test_no_two_public_classes_share_a_name() -> None:
    assert duplicate_classes({module_of(file): file.read_text() for file in MODULES}) == {}
