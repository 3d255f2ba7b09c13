"""The public functions: what they take, and the errors of wrong input."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import ConfigError, EnvironmentFault, load_config
from paceline.sweeps import sweep as sweeping

TREE = {"name": "x", "model": {"name": "cnn"}, "data": {"name": "mnist5k", "global_batch_size": 8}}


def test_each_public_function_is_documented_and_typed() -> None:
    functions = [each for name in paceline.__all__ if inspect.isfunction(each := getattr(paceline, name))]
    assert {"compare", "evaluate", "export", "lint", "plan", "predict", "report", "sweep", "train", "tuneup"} <= {
        each.__name__ for each in functions
    }
    for function in functions:
        assert inspect.getdoc(function)
        assert all(name in (function.__doc__ or "") for name in inspect.signature(function).parameters)
        assert set(inspect.signature(function).parameters) | {"return"} == set(function.__annotations__)


@pytest.mark.parametrize(
    "call",
    [
        lambda run: paceline.evaluate(run),
        lambda run: paceline.predict(run),
        lambda run: paceline.export(run),
        lambda run: paceline.report(run),
        lambda run: paceline.compare(run, run),
        lambda run: paceline.load_run(run),
        lambda run: paceline.load_sweep(run),
    ],
)
def test_a_run_that_is_not_there_is_reported(call: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        call(str(tmp_path / "none"))
    assert caught.value.code == "no-run"


def test_a_sweep_takes_its_space_and_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(sweeping, "_sweep", lambda config, *rest: given.append(config))
    space = {"optimizer.lr": [0.1, 0.2], "data.global_batch_size": [4, 8]}
    paceline.sweep(load_config(TREE), space=space, metric="val/accuracy", listener=Any)
    paceline.sweep(load_config(TREE), space=space, metric=("val/loss", "val/accuracy"), listener=Any)
    sections = [config.sweep for config in given]
    assert [section.space for section in sections] == [space, space]
    assert [section.metric for section in sections] == ["val/accuracy", ["val/loss", "val/accuracy"]]


@pytest.mark.parametrize(
    ("space", "key"),
    [
        ({"optimizer.lr": []}, "sweep.space.optimizer.lr"),
        ({"optimizer.rl": [1.0]}, "sweep.space.optimizer.rl"),
        ({}, "sweep.space"),
    ],
)
def test_a_wrong_space_names_its_axis(space: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        paceline.sweep(load_config(TREE), space=space, listener=Any)
    assert [problem.key for problem in caught.value.problems] == [key]
