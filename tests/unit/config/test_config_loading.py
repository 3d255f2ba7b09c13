"""Loading: round trip and import paths."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from paceline.config import imports
from paceline.config.experiment import validate
from paceline.config.imports import has_import_paths, make_importable, missing_module
from paceline.config.loading import dump_yaml, load_config, placing
from paceline.errors import ConfigError, Problem
from paceline.starting_folder import drop_starting_folder
from support.configs import problems_of

Write = Callable[..., Path]

FULL = """\
seed: 3
task: {name: classification, label_smoothing: 0.1}
optimizer: {name: adamw, lr: 1e-3, eps: 1e-8, lr_scaling: sqrt}
lr_scheduler: {name: cosine, warmup_epochs: 1}
trainer: {epochs: 5, precision: bf16-mixed, max_grad_norm: 1.0}
scaling: {num_workers: 2, use_gpu: false}
checkpoint: {every_n_steps: 200}
"""


def test_a_resolved_config_loads_as_the_same_config(write: Write, tmp_path: Path) -> None:
    config = load_config(write(FULL))
    saved = tmp_path / "resolved.yaml"
    saved.write_text(dump_yaml(config))
    again = load_config(saved)
    assert again == config == validate(config.model_dump(mode="json"))
    assert dump_yaml(again) == dump_yaml(config)
    assert list(yaml.safe_load(saved.read_text())) == list(type(config).model_fields)


@pytest.mark.parametrize(
    "text",
    ["off", "null", "1e-3", "12", "0x1f", "2024-01-01", "1:30", "~", "<<", "=", "", " a ", "é: #", "a\nb"],
)
def test_text_stays_text_over_a_round_trip(text: str, write: Write, tmp_path: Path) -> None:
    args = {"value": text, "keys": {text: [text, 1, 0.001, 1e-30, True, None]}}
    config = load_config(write()).with_overrides({"model.args": args})
    saved = tmp_path / "resolved.yaml"
    saved.write_text(dump_yaml(config), encoding="utf-8")
    assert load_config(saved) == config
    assert yaml.safe_load(dump_yaml(config))["model"]["args"]["value"] == text


def test_python_objects_in_arguments_cannot_be_written(write: Write) -> None:
    config = load_config(write()).with_overrides({"model.args": {"value": object()}})
    assert problems_of(dump_yaml, config)[0].code == "not-plain"


def test_validate_without_a_file_has_no_places() -> None:
    found = problems_of(validate, {"name": "x", "seed": "y"})
    assert {problem.key: problem.place for problem in found} == {"seed": "", "model": "", "data": ""}
    assert [problem.code for problem in problems_of(validate, [1])] == ["wrong-type"]


def test_config_and_working_folder_are_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, module in (("configs", "beside_config"), ("work", "beside_caller")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text("def build(): return 'built'\n")
    file = tmp_path / "configs" / "run.yaml"
    file.write_text("name: run\nmodel: {path: 'beside_config:build'}\ndata: {path: 'beside_caller:build'}\n")
    monkeypatch.chdir(tmp_path / "work")
    config = load_config(Path("..") / "configs" / "run.yaml")
    assert config.model.call() == "built"  # type: ignore[attr-defined]
    assert config.data.call() == "built"  # type: ignore[attr-defined]


def test_modules_are_looked_up_without_running_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('was run')\n")
    (package / "nets.py").write_text("def build(): ...\nraise RuntimeError('was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_module("own_pkg.nets:build") is None
    assert missing_module("own_pkg:nets.build") is None
    assert missing_module("own_pkg.nets:built") is not None
    assert missing_module("own_pkg.nest:build") is not None
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # a notebook's, which has no file
    assert missing_module("__main__:build") is None
    assert missing_module("json.nope:join") is not None


@pytest.mark.parametrize(
    ("text", "name", "is_there"),
    [
        ("class Net: ...", "Net.make", True),
        ("from functools import partial as build", "build", True),
        ("import os.path", "os.path.join", True),
        ("a, (build, *_) = 1, (2, 3)", "build", True),
        ("try:\n    import x as build\nexcept ImportError:\n    build = None", "build", True),
        ("with open('x') as f:\n    for build in f: ...", "build", True),
        ("from os import *", "build", True),
        ("def __getattr__(name): ...", "build", True),
        ("globals()['build'] = print", "build", True),
        ("def make():\n    global build\n    build = 1", "build", True),
        ("def make():\n    build = 1", "build", False),
        ("class Net:\n    def build(self): ...", "build", False),
        ("x = '\\d'", "build", False),
        ("", "build", False),
    ],
)
def test_names_of_a_module_are_looked_up_in_its_file(text: str, name: str, is_there: bool, tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    problem = missing_module(f"named:{name}")
    assert (problem is None) == is_there
    assert "named" not in sys.modules
    assert problem is None or problem.code == "import"


@pytest.mark.parametrize("path", ["wavs:build", "waves.py:build", "wave:build"])
def test_a_module_of_a_similar_name_is_suggested(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the name is that of a module of Python."""
    (tmp_path / "waves.py").write_text("def build(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    problem = missing_module(path)
    assert problem is not None
    assert "waves:build" in problem.hint


@pytest.mark.parametrize(("module", "place"), [("sched", "sched.py"), ("time", "built-in")])
def test_a_file_with_the_name_of_a_library_is_to_be_renamed(
    module: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{module}.py"
    file.write_text("class Sched: ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    problem = missing_module(f"{module}:Sched")
    assert problem is not None
    assert str(file) in problem.hint
    assert f"{place}) has no 'Sched'" in problem.reason
    other = missing_module("wave:Sched")
    assert other is not None
    assert "rename" not in other.hint


def test_names_of_an_imported_module_are_looked_up_in_it() -> None:
    assert missing_module("json:dump") is None
    assert missing_module("json:tool.main") is None
    problem = missing_module("json:dumb")
    assert problem is not None
    assert "did you mean dump" in problem.hint


def test_a_module_that_is_no_python_is_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    (tmp_path / "broken.py").write_text("x = 1\n\ndef build(:\n")
    [problem] = problems_of(load_config, write("task: {path: 'broken:build'}\n"))
    assert (problem.code, problem.key) == ("import", "task.path")
    assert problem.reason.startswith("importing 'broken' failed: SyntaxError: ")
    assert problem.reason.endswith("(broken.py, line 3)")
    assert ":4:" in problem.place


def test_what_is_found_after_loading_gets_its_place(write: Write) -> None:
    file = write("seed: 3\n")
    with pytest.raises(ConfigError) as caught, placing(file, ["task.name=classification"]):
        raise ConfigError(
            [Problem("a", "b", "seed"), Problem("a", "b", "task.name"), Problem("a", "b", "seed", "here")]
        )
    assert [each.place for each in caught.value.problems] == [
        f"{file}:4:1",
        "override 'task.name=classification'",
        "here",
    ]
    file.unlink()
    with pytest.raises(ConfigError, match="first said"), placing(file, []):
        raise ConfigError([Problem("a", "first said", "seed")])


@pytest.fixture
def fresh_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import path without what other tests have put there."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in imports._added])
    monkeypatch.setattr(imports, "_added", [])


@pytest.mark.usefixtures("fresh_path")
def test_folders_are_made_importable_behind_libraries_and_only_for_import_paths(tmp_path: Path, write: Write) -> None:
    before = sys.path[:]
    shipped = "name: run\nmodel: {name: resnet18}\ndata: {name: CIFAR10}\nstorage: {path: 's3://bucket/runs'}\n"
    load_config(write(head=shipped))
    assert sys.path == before
    load_config(write())
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"model": {"path": "own:net"}}, True),
        ({"callbacks": [{"name": "ema"}, {"path": "own:Watch"}]}, True),
        ({"sweep": {"space": {"model.path": ["own:a", "own:b"]}}}, True),
        ({"sweep": {"space": {"model": [{"name": "resnet18"}, {"path": "own:net"}]}}}, True),
        ({"model": {"path": print}}, False),
        ({"model": {"name": "resnet18", "args": {"text": "a:b"}}, "storage": {"path": "s3://bucket"}}, False),
    ],
)
def test_import_paths_are_found_anywhere_in_a_config(tree: dict[str, Any], expected: bool) -> None:
    assert has_import_paths(tree) is expected


@pytest.mark.usefixtures("fresh_path")
def test_folders_of_the_newest_config_come_before_those_of_earlier_ones(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    before = sys.path[:]
    make_importable([first, second])
    make_importable([third, second])
    assert sys.path == [*before, str(third), str(second), str(first)]
    make_importable([first])
    assert sys.path == [*before, str(first), str(third), str(second)]


@pytest.mark.parametrize(
    ("front", "left"),
    [
        (["", "lib"], ["lib"]),
        (["cwd", "cwd", "lib"], ["cwd", "lib"]),
        (["lib", "cwd"], ["lib", "cwd"]),
        (["script", "lib"], ["lib"]),
    ],
)
def test_the_command_drops_the_folder_that_python_put_first(
    front: list[str], left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"cwd": str(tmp_path), "script": str(tmp_path / "bin"), "lib": "/lib", "": ""}
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "paceline")])
    monkeypatch.setattr(sys, "path", [named[entry] for entry in front])
    drop_starting_folder()
    assert sys.path == [named[entry] for entry in left]
