"""A folder with the user's own code in it, and a way to write config files there."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import validate
from paceline.config.loading import load_config
from paceline.errors import Problem
from support.configs import problems_of
from support.golden import Golden

HEAD = "name: run\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n"
"""The least that a config needs; three lines."""


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder that holds the module `own_nets`; what `load_config` adds to the import path is taken away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "own_nets.py").write_text("def build(width=8, **others): ...\ndef data(): ...\n")
    yield tmp_path
    sys.path_importer_cache.pop(str(tmp_path), None)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a config file: the three lines that every config needs, then the given ones."""

    def write(body: str = "", head: str = HEAD) -> Path:
        file = tmp_path / "run.yaml"
        file.write_text(head + body, encoding="utf-8")
        return file

    return write


@pytest.fixture
def refused(write: Callable[..., Path], golden: Golden) -> Callable[..., None]:
    """Check that a file is refused for one reason at its place; the message is a golden text.

    The text follows the three lines of a good config, unless it begins with `name:` or `model:` itself.
    """

    def refused(text: str, code: str, key: str, line: int | str | None = None, head: str = HEAD) -> None:
        file = write(text, "" if text.startswith(("name:", "model:")) else head)
        (problem,) = problems_of(load_config, file)
        assert (problem.code, problem.key) == (code, key)
        assert problem.place.startswith(f"{file}:{line or ''}")
        golden(message_of(problem))

    return refused


def message_of(problem: Problem) -> str:
    """A problem as it is printed, without its place and without the folders that modules were looked for in."""
    hint = re.sub(r"looked in .*", "looked in <folders>", problem.hint)
    return str(replace(problem, place="", hint=hint))


@pytest.fixture
def refuse(golden: Golden) -> Callable[[Any], Problem]:
    """Check that a tree is refused for one reason, and return it; the message is a golden text."""

    def refuse(tree: Any) -> Problem:
        (problem,) = problems_of(validate, tree)
        golden(message_of(problem))
        return problem

    return refuse
