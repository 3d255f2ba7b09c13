"""Runs that were started with Python objects, opened again by a program that does not have them."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline import RunResult, load_run, load_sweep, train
from paceline.cluster.listener import SilentListener
from paceline.engine.state import weights_sha256
from paceline.errors import PacelineError
from paceline.runs.export import export
from support.golden import Golden
from support.refusals import refused
from support.runs.trained_runs import CNN, config, swept
from support.toys import CLASSES, FEATURES, Points


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Linear(width, CLASSES))


class Pairs(Points):
    def __getitem__(self, index: int) -> Any:
        features, target, _ = super().__getitem__(index)
        return features.float(), target


DATA = Pairs(48), Pairs(24)
ARGS = {"trainer": {"epochs": 1}, "model": CNN["model"], "data": {"name": "synthetic", "global_batch_size": 16}}


@pytest.fixture
def home(prepared_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_from(home: Path, model: Any) -> RunResult:
    return train(config(home, "objects", **ARGS), model=model, data=DATA, listener=SilentListener())


@pytest.mark.parametrize("model", [lambda: net(5), partial(net, 5)], ids=["local", "partial"])
def test_metrics_and_weights_need_no_objects(home: Path, model: Any, golden: Golden) -> None:
    result = trained_from(home, model)
    found = load_run("objects")
    assert (found.metrics, found.weights_sha256, found.steps) == (result.metrics, result.weights_sha256, 3)
    assert found.config.model_dump(mode="json") == result.config.model_dump(mode="json")
    for given in (model, net(5)):
        assert weights_sha256(found.load_model(model=given).state_dict()) == result.weights_sha256
    assert refused(PacelineError, lambda: found.load_model(model=net(6))).code == "weights-mismatch"
    error = refused(PacelineError, found.load_model)
    assert (error.code, error.fields["section"]) == ("needs-object", "model")
    if isinstance(model, partial):
        golden(str(error))

    exported = export("objects", output=home / "out")
    assert exported.warnings == ()
    assert weights_sha256(found.load_model(home / "out", model=model).state_dict()) == result.weights_sha256
    assert refused(PacelineError, lambda: export("objects", "pt2")).code == "needs-object"


def test_a_model_of_the_program_itself_is_missing_in_another_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own() -> nn.Module:
        return net(5)

    own.__module__, own.__qualname__ = "__main__", "own"
    result = trained_from(home, own)
    assert refused(PacelineError, load_run("objects").load_model).code == "needs-object"
    monkeypatch.setattr("__main__.own", own, raising=False)
    assert weights_sha256(load_run("objects").load_model().state_dict()) == result.weights_sha256


def test_a_sweep_over_objects_is_opened_again(home: Path) -> None:
    sections = {**ARGS, "model": {"path": lambda: net(5)}, "data": {"path": lambda: DATA, "global_batch_size": 16}}
    sweep = swept(home, "objects", {"0000": 0.01, "0001": 0.1}, **sections)
    found = load_sweep("objects")
    assert found.best is not None
    trial = load_run(f"objects/{sweep.run_id}/{found.best.id}")
    assert trial.metrics == found.best.metrics
    assert refused(PacelineError, found.load_model).code == "needs-object"
    weights = found.load_model(model=net(5)).state_dict()
    assert torch.equal(weights["0.weight"], trial.load_model(model=net(5)).state_dict()["0.weight"])
