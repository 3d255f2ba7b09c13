"""Whether the user's own code has changed: its meaning counts, and all that it takes from its own module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

from paceline.study.tuneup.own_digests import own_digests
from support.toys import toy_config

SCRIPT = """
import functools
import math

WIDTH = 8
NAMES = {"kind": "relu", "sizes": [1, 2]}
UNUSED = 1


def activation(x):
    return x if x in {"relu", "gelu", "tanh"} else math.pi


def unused():
    return 1


class Base:
    depth = 2

    def forward(self, x):
        return [activation(each) for each in x]


class Net(Base):
    def __init__(self, width=4):
        self.width = width * WIDTH

    @property
    def size(self):
        return self.width * 2

    @staticmethod
    def kind():
        return NAMES["kind"]


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


def digest_of(build: Any) -> str:
    """Of a callable that stands in a config in place of a model."""
    return own_digests(toy_config().with_overrides({"model": {"path": build}}))["model"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 8", "WIDTH = 9"),
        ('"sizes": [1, 2]', '"sizes": [1, 3]'),
        ("else math.pi", "else math.e"),
        ('"gelu", "tanh"', '"gelu", "silu"'),
        ("depth = 2", "depth = 3"),
        ("for each in x]", "for each in x[1:]]"),
        ("width=4", "width=5"),
        ("self.width * 2", "self.width * 3"),
        ('NAMES["kind"]', 'NAMES["sizes"]'),
        ("extra=1", "extra=2"),
        ("scale * extra", "scale + extra"),
        ("made(3)", "made(4)"),
        ("made(3)", "functools.partial(made(3), extra=2)"),
        ("made(3)", "Net"),
    ],
)
def test_what_a_script_computes_decides(old: str, new: str) -> None:
    assert SCRIPT.count(old) == 1
    assert digest_of(run(SCRIPT.replace(old, new))) != digest_of(run(SCRIPT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 8", "# how wide\n\nWIDTH = 8"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def unused():\n    return 1", "def other(): ..."),
    ],
)
def test_nothing_else_of_it_does(old: str, new: str) -> None:
    assert digest_of(run(SCRIPT.replace(old, new))) == digest_of(run(SCRIPT))


@pytest.mark.parametrize("wrap", [lru_cache, lambda build: partial(build, 2)])
def test_what_wraps_a_callable_does_not_hide_it(wrap: Any) -> None:
    found = {digest_of(wrap(run(SCRIPT.replace("WIDTH = 8", f"WIDTH = {width}")))) for width in (8, 8, 9)}
    assert len(found) == 2


def test_every_process_says_the_same(tmp_path: Path) -> None:
    """Python orders sets otherwise in each, and what travels to a worker is made anew there."""
    (tmp_path / "main.py").write_text(
        f"{SCRIPT}\nimport sys\nfrom ray import cloudpickle\n\n"
        "sys.path.insert(0, sys.argv[1])\nfrom study.tuneup.test_own_digests import digest_of\n\n"
        "print(digest_of(build), digest_of(cloudpickle.loads(cloudpickle.dumps(build))))\n"
    )
    tests = str(Path(__file__).parents[2])
    told = set()
    for seed in ("1", "2"):
        command = [sys.executable, "main.py", tests]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        told |= set(done.stdout.split())
    assert len(told) == 1


class Awkward:
    """A global whose attributes cannot be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not now")


def test_what_cannot_be_looked_at_is_let_be() -> None:
    build = run("def build():\n    return thing\n")
    build.__globals__["thing"] = Awkward()
    assert "model" in own_digests(toy_config().with_overrides({"model": {"path": build}}))
    looked = run("def build():\n    return thing\n")
    looked.__globals__["thing"] = type("Called", (Awkward,), {"__call__": lambda self: None})()
    assert "model" not in own_digests(toy_config().with_overrides({"model": {"path": looked}}))


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
