"""The user's own modules that travel to a cluster, with a driver that stays at home and an address of the cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.user_code import modules_of_job, runtime_env, sent_modules
from paceline.config.experiment import ExperimentConfig, validate

NEVER = "def build(**args):\n    raise AssertionError('it is sent, and not imported')\n"
MODULES = {"mine": ["sent_net"], "theirs": ["sent_other_net", "sent_data", "sent_task", "sent_metric", "unused_net"]}
TREE: dict[str, Any] = {"name": "own", "model": {"path": "sent_net:build"}, "data": {"name": "mnist5k"}}
Place = Callable[[str], Path]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return the file of a module; the modules lie in two folders."""
    for folder, modules in MODULES.items():
        (tmp_path / folder).mkdir()
        for module in modules:
            (tmp_path / folder / f"{module}.py").write_text(NEVER)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    return lambda module: next(tmp_path.glob(f"*/{module}.py")).resolve()


def swept(space: dict[str, Any], **base: Any) -> ExperimentConfig:
    return validate({**TREE, **base, "sweep": {"space": space}})


def test_modules_of_custom_techniques_travel_beside_those_of_the_config(place: Place) -> None:
    techniques = {"theirs": {"model.path": "sent_other_net:build"}, "wrong": {"trainer.epochs": -1}}
    config = validate({**TREE, "tuneup": {"techniques": techniques}})
    environment = runtime_env(sent_modules(config, "tuneup"))
    assert environment["working_dir"] == str(place("sent_net").parent)
    assert [Path(module).name for module in environment["py_modules"]] == ["paceline", "sent_other_net.py"]
    package = environment["py_modules"][0]
    assert runtime_env(sent_modules(config, "train")) == {**environment, "py_modules": [package]}


@pytest.mark.parametrize(
    ("space", "modules"),
    [
        ({"model.path": ["sent_net:build", "sent_other_net:build"]}, ["sent_other_net"]),
        ({"data.path": ["sent_data:build"]}, ["sent_data"]),
        ({"task.path": ["sent_task:build"], "model.path": ["sent_other_net:build"]}, ["sent_other_net", "sent_task"]),
        ({"model": [{"name": "mlp"}, {"path": "sent_other_net:build", "args": {"width": 3}}]}, ["sent_other_net"]),
        ({"metrics": [[], [{"name": "own", "path": "sent_metric:build"}]]}, ["sent_metric"]),
        ({"model.path": ["os.path:join", "sent_net:build"]}, []),  # Python's own, and that of the config
        ({"optimizer.lr": [0.1, 0.2], "model.args.width": [1, 2]}, []),
        (
            {"model": [{"path": "sent_other_net:build", "width": 3}]},
            ["sent_other_net"],
        ),  # right beside another axis
    ],
    ids=str,
)
def test_modules_of_every_value_of_an_axis_travel(place: Place, space: dict[str, Any], modules: list[str]) -> None:
    config = swept(space)
    own = place("sent_net")
    assert sent_modules(config, "sweep")[0] == own
    assert sorted(sent_modules(config, "sweep")[1:]) == sorted(place(module) for module in modules)
    assert sent_modules(config, "train") == [own]
    assert {key for key, found in modules_of_job(config, "sweep") if found != own} <= set(space)


def test_the_config_itself_may_name_no_module(place: Place) -> None:
    config = swept({"model.path": ["sent_other_net:build"]}, model={"name": "mlp"})
    environment = runtime_env(sent_modules(config, "sweep"))
    assert environment["working_dir"] == str(place("sent_other_net").parent)
