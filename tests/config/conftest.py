"""A folder with the user's own code in it, and a way to write config files there."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from paceline.errors import ConfigError

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
def refused(write: Callable[..., Path]) -> Callable[..., None]:
    """Check that a config is refused for one reason; `words` are parts of its message, with ` ... ` between them."""

    def refused(text: str, code: str, key: str, line: int, words: str, head: str = HEAD) -> None:
        file = write(text, "" if text.startswith(("name:", "model:")) else head)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        assert len(caught.value.problems) == 1, str(caught.value)
        problem = caught.value.problems[0]
        assert (problem.code, problem.key) == (code, key), problem
        assert problem.place.startswith(f"{file}:{line}:"), problem
        for part in words.split(" ... "):
            assert part in str(problem)

    return refused
