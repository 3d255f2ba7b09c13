"""Whether the user's own code has changed: its meaning counts, and all that it takes from its own module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.study.tuneup.own_digests import own_digests
from support.toys import toy_config

SCRIPT = """
import functools
import math
from argparse import Namespace

import torch

WIDTH = 8
NAMES = {"kind": "relu", "act": torch.nn.ReLU, "sizes": [1, 2]}
OPTIONS = Namespace(bias=True)
UNUSED = 1
scale = 1  # which is the name of an attribute, too
CALLS = 0


def activation(x, kind=torch.float32):
    global CALLS
    CALLS += 1
    return x.scale if x in {"relu", "gelu", "tanh"} else math.pi


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)

    return wrapper


@doubled
def offset():
    return 0.5


TABLE = {"offset": offset}
KINDS = {offset, activation, "plain", 3, math.sin}


def unused():
    return 1


class Base:
    depth = 2

    def forward(self, x):
        return [activation(each) for each in x]


class Net(Base):
    def __init__(self, width=4, act=torch.nn.ReLU):
        self.width = width * WIDTH

    @property
    def size(self):
        return self.width * 2

    @size.setter
    def size(self, value):
        self.width = value / 2

    @functools.cached_property
    def area(self):
        return self.width**2

    @staticmethod
    def kind():
        return NAMES["kind"], OPTIONS.bias, TABLE["offset"], KINDS

    @classmethod
    def small(cls):
        return cls(1)


def made(scale):
    def build(extra=1):
        def inner():
            return Net(scale * extra)

        return inner()

    return build


build = made(3)
"""


def run(source: str) -> Any:
    """`build` of a script."""
    space: dict[str, Any] = {"__name__": "script"}
    exec(compile(source, "script.py", "exec"), space)
    return space["build"]


def digest_of(build: Any) -> dict[str, str]:
    """Of a callable that stands in a config in place of a model."""
    digests = own_digests(toy_config().with_overrides({"model": {"path": build}}))
    return {name: digest for name, digest in digests.items() if name.startswith("model: ")}


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("WIDTH = 8", "WIDTH = 9", "WIDTH"),
        ('"sizes": [1, 2]', '"sizes": [1, 3]', "NAMES"),
        ('"act": torch.nn.ReLU', '"act": torch.nn.GELU', "NAMES"),
        ("bias=True", "bias=False", "OPTIONS"),
        ("kind=torch.float32", "kind=torch.float64", "activation"),
        ("else math.pi", "else math.e", "activation"),
        ('"gelu", "tanh"', '"gelu", "silu"', "activation"),
        ("2 * function", "3 * function", "offset"),
        ("return 0.5", "return 0.7", "offset"),
        ('"plain", 3', '"plain", 4', "KINDS"),
        ("depth = 2", "depth = 3", "Base"),
        ("for each in x]", "for each in x[1:]]", "Base"),
        ("width=4", "width=5", "Net"),
        ("act=torch.nn.ReLU", "act=torch.nn.GELU", "Net"),
        ("self.width * 2", "self.width * 3", "Net"),
        ("value / 2", "value / 3", "Net"),
        ("self.width**2", "self.width**3", "Net"),
        ('NAMES["kind"]', 'NAMES["sizes"]', "Net"),
        ("extra=1", "extra=2", "made.<locals>.build"),
        ("scale * extra", "scale + extra", "made.<locals>.build"),
        ("made(3)", "made(4)", "made.<locals>.build"),
    ],
)
def test_what_a_script_computes_decides(old: str, new: str, part: str) -> None:
    assert SCRIPT.count(old) == 1
    before, now = digest_of(run(SCRIPT)), digest_of(run(SCRIPT.replace(old, new)))
    assert {name for name in before | now if before.get(name) != now.get(name)} == {f"model: {part}"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 8", "# how wide\n\nWIDTH = 8"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("CALLS = 0", "CALLS = 7"),
        ("scale = 1", "scale = 2"),
        ("def unused():\n    return 1", "def other(): ..."),
    ],
)
def test_nothing_else_of_it_does(old: str, new: str) -> None:
    assert SCRIPT.count(old) == 1
    assert digest_of(run(SCRIPT.replace(old, new))) == digest_of(run(SCRIPT))


@pytest.mark.parametrize(
    ("build", "changed"),
    [
        ("functools.partial(made(3), 2)", "functools.partial(made(3), 3)"),
        ("functools.partial(made, scale=torch.nn.ReLU)", "functools.partial(made, scale=torch.nn.GELU)"),
        ("functools.lru_cache(made(3))", "functools.lru_cache(made(4))"),
        ("Net", "Base"),
        ("Net.small", "Net.kind"),
    ],
)
def test_any_callable_is_told_from_others(build: str, changed: str) -> None:
    first, second, other = (
        digest_of(run(SCRIPT.replace("build = made(3)", f"build = {each}"))) for each in (build, build, changed)
    )
    assert first == second
    assert other != first
    narrower = SCRIPT.replace("build = made(3)", f"build = {build}").replace("self.width = width *", "self.width = 2 *")
    assert build == "functools.partial(made, scale=torch.nn.ReLU)" or digest_of(run(narrower)) != first


def test_an_object_is_told_by_its_class_and_its_settings() -> None:
    source = "class Build:\n    def __init__(self, n):\n        self.n = n\n        self.calls = []\n\n"
    source += "    def __call__(self):\n        return self.n\n\nbuild = Build(4)\n"
    first, again = run(source), run(source)
    again.calls.append(1)
    assert digest_of(again) == digest_of(first)
    assert digest_of(run(source.replace("Build(4)", "Build(8)"))) != digest_of(first)
    assert digest_of(run(source.replace("return self.n", "return -self.n"))) != digest_of(first)


def test_every_process_says_the_same(tmp_path: Path) -> None:
    """Python orders sets otherwise in each, and what travels to a worker is made anew there."""
    script = SCRIPT.replace("functools.cached_property", "property")  # which has a lock, that nothing can send
    (tmp_path / "main.py").write_text(
        f"{script}\nimport sys\nfrom ray import cloudpickle\n\n"
        "sys.path.insert(0, sys.argv[1])\nfrom study.tuneup.test_own_digests import digest_of\n\n"
        "print(digest_of(build))\nprint(digest_of(cloudpickle.loads(cloudpickle.dumps(build))))\n"
    )
    tests = str(Path(__file__).parents[2])
    told = set()
    for seed in ("1", "2"):
        command = [sys.executable, "main.py", tests]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        told |= set(done.stdout.splitlines())
    assert len(told) == 1
    assert b"model: WIDTH" in told.pop()


class Awkward:
    """A global whose attributes cannot be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not now")


def test_what_cannot_be_looked_at_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "awkward", Awkward())  # type: ignore[arg-type]
    found = []
    for width in (1, 2):
        build = run(f"WIDTH = {width}\n\ndef build():\n    return thing, WIDTH\n")
        build.__globals__["thing"] = Awkward()
        found.append(digest_of(build))
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"model: WIDTH"}


def test_a_module_of_the_name_of_a_section_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    (tmp_path / "model.py").write_text("def build():\n    return 1\n")
    config = toy_config().with_overrides({"model": {"path": importlib.import_module("model").build}})
    first = own_digests(config)
    (tmp_path / "model.py").write_text("def build():\n    return 2\n")
    second = own_digests(config)
    del sys.modules["model"]
    assert {name for name in first if first[name] != second[name]} == {"model"}


def test_modules_are_told_by_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("imported_net", "later_net", "strange_net"):
        (tmp_path / f"{name}.py").write_text("def build(width):\n    return width\n")
    importlib.import_module("imported_net")
    arms = {"later": {"model": {"path": "later_net:build", "args": {"width": 1}}}, "same": {"optimizer.lr": 0.2}}
    config = toy_config().with_overrides({"tuneup": {"arms": arms}})
    first = own_digests(config)
    assert {"imported_net", "later_net", __name__} <= first.keys()
    assert not {"strange_net", "torch", "json", "paceline.study.tuneup.own_digests", "__main__"} & first.keys()
    (tmp_path / "imported_net.py").write_text("# It says more.\ndef build( width ):\n\n    return (width)\n")
    (tmp_path / "later_net.py").write_text("def build(width):\n    return 2 * width\n")
    second = own_digests(config)
    assert {name for name in second if second[name] != first[name]} == {"later_net"}
    (tmp_path / "later_net.py").write_text("def build(:\n")
    (tmp_path / "imported_net.py").unlink()
    third = own_digests(config)
    assert third["later_net"] not in (first["later_net"], second["later_net"])
    assert "imported_net" not in third
