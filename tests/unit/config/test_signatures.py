"""The names of the arguments in a config, beside those that the user's own function or class takes."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.config.loading import load_config, missing_modules
from paceline.config.signatures import Parameters, argument_problems, parameters_of
from support.configs import problems_of

Write = Callable[..., Path]

DATA = "data: {path: 'own_nets:data'}\n"
NETS = """
from torch import nn
from .parts import block, block as renamed
raise RuntimeError("was run")
def build(width, depth=2, *, bias=True, scale): ...
class Net(nn.Module):
    def __init__(self, width, depth=2): ...
class Plain: ...
def task(model, pause=0): ...
"""


@pytest.fixture(autouse=True)
def own_package(in_own_folder: Path) -> None:
    """A package `own` that cannot be imported, and has to be read."""
    (in_own_folder / "own").mkdir()
    (in_own_folder / "own" / "__init__.py").write_text("from own.nets import Net\nfrom .nets import build as made\n")
    (in_own_folder / "own" / "nets.py").write_text(NETS)
    (in_own_folder / "own" / "parts.py").write_text("def block(size): ...\n")
    sys.path.insert(0, str(in_own_folder))


@pytest.mark.parametrize(
    ("path", "names", "required"),
    [
        ("own.nets:build", ("width", "depth", "bias", "scale"), ("width", "scale")),
        ("own.nets:Net", ("width", "depth"), ("width",)),
        ("own.nets:Plain", (), ()),
        ("own.nets:block", ("size",), ("size",)),
        ("own.nets:renamed", ("size",), ("size",)),
        ("own:Net", ("width", "depth"), ("width",)),
        ("own:made", ("width", "depth", "bias", "scale"), ("width", "scale")),
    ],
)
def test_what_is_taken_is_read_from_the_file(path: str, names: tuple[str, ...], required: tuple[str, ...]) -> None:
    assert parameters_of(path) == Parameters(names, required)
    assert not {"own", "own.nets"} & set(sys.modules)


@pytest.mark.parametrize(
    "text",
    [
        "def build(**any): ...",
        "def build(first, /): ...",
        "@wrapped\ndef build(width): ...",
        "def build(width): ...\nbuild = wrapped(build)",
        "def build(width): ...\ndef again():\n    global build\n    build = 1",
        "def build(width): ...\nfrom others import *",
        "build = partial(print, width=3)",
        "class build(Base): ...",
        "class build(metaclass=Meta):\n    def __init__(self, width): ...",
        "class build:\n    def __new__(cls, width): ...\n    def __init__(self, depth): ...",
        "class build:\n    __init__ = make",
        "@dataclass\nclass build:\n    width: int",
        "from nowhere_to_be_found import build",
        "import build",
    ],
)
def test_what_cannot_be_told_is_let_pass(text: str, tmp_path: Path) -> None:
    (tmp_path / "unclear.py").write_text(text)
    assert argument_problems("unclear:build", ["anything"]) == []


class Meta(type):
    """Calls its classes in a way of its own."""


class Own:
    """What the tests below look at as objects."""

    def __init__(self, width: int, depth: int = 2) -> None: ...

    @classmethod
    def make(cls, size: int) -> None: ...


class ByMeta(metaclass=Meta):
    """One that may take anything."""

    def __init__(self, width: int) -> None: ...


@dataclass
class Made:
    """Its arguments follow from its fields."""

    width: int
    depth: int = 2


@functools.wraps(Own.make)
def wrapper(**given: Any) -> None:
    """Takes more than what it wraps."""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Own, Parameters(("width", "depth"), ("width",))),
        (Made, Parameters(("width", "depth"), ("width",))),
        (Own.make, Parameters(("size",), ("size",))),
        (functools.partial(Own.make, size=3), Parameters(("size",))),
        (f"{__name__}:Own", Parameters(("width", "depth"), ("width",))),
        (f"{__name__}:Own.make", Parameters(("size",), ("size",))),
        (ByMeta, None),
        (wrapper, None),
        (print, None),
        (int, None),
        (f"{__name__}:nothing", None),
    ],
)
def test_objects_and_imported_code_are_asked_themselves(target: Any, expected: Parameters | None) -> None:
    assert parameters_of(target) == expected


def wrong_in(file: Path) -> list[tuple[str, str, int]]:
    """Code, key and line of what is wrong with a config file."""
    found = problems_of(load_config, file)
    return [(each.code, each.key, int(each.place.split(":")[1])) for each in found]


def test_a_mistyped_argument_is_refused_with_its_place(write: Write) -> None:
    file = write(f"name: x\n{DATA}model:\n  path: 'own:Net'\n  args:\n    width: 3\n    deph: 4\n", "")
    assert wrong_in(file) == [("unknown-key", "model.args.deph", 7)]


def test_a_missing_argument_is_refused(write: Write) -> None:
    file = write(f"name: x\n{DATA}model:\n  path: 'own:Net'\n", "")
    assert wrong_in(file) == [("missing-key", "model.args.width", 3)]
    assert load_config(file, {"model.args.width": 3}).model.args == {"width": 3}  # type: ignore[attr-defined]


def test_what_paceline_gives_need_not_be_in_the_config(write: Write) -> None:
    head = f"name: x\n{DATA}model: {{name: mlp}}\n"
    load_config(write("task: {path: 'own.nets:task', args: {pause: 1}}\n", head))
    assert wrong_in(write("task: {path: 'own.nets:task', args: {paus: 1}}\n", head)) == [
        ("unknown-key", "task.args.paus", 4)
    ]


def test_a_module_that_is_not_found_is_the_only_problem(write: Write) -> None:
    file = write(f"name: x\n{DATA}model: {{path: 'own.nest:Net', args: {{deph: 4}}}}\n", "")
    assert wrong_in(file) == [("import", "model.path", 3)]


def test_what_axes_set_need_not_be_in_the_config(write: Write) -> None:
    head = f"name: x\n{DATA}"
    load_config(write("model: {path: 'own:Net'}\nsweep: {space: {model.args.width: [1, 2]}}\n", head))
    switched = "model: {path: 'own:Net', args: {scale: 1}}\nsweep: {space: {model.path: ['own:made', 'own:Net']}}\n"
    load_config(write(switched, head))
    other = "model: {path: 'own:Net'}\nsweep: {space: {model.args.depth: [1, 2]}}\n"
    assert wrong_in(write(other, head)) == [("missing-key", "model.args.width", 3)]


def test_objects_in_a_config_are_looked_at() -> None:
    [problem] = missing_modules({"model": {"path": Own, "args": {"width": 1, "dept": 2}}})
    assert (problem.key, problem.hint) == ("model.args.dept", "did you mean depth?")
