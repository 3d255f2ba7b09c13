"""`paceline plan` and `plan()` as a user meets them: tables, JSON, exit codes, and that nothing is left behind."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import MemoryPlan, cli, load_config
from paceline.config.batch_sizes import batch_sizes
from paceline.config.imports import make_importable

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def build():
    print("printed by the user's model")
    first, second = nn.Sequential(nn.Linear(20, 512), nn.ReLU()), nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(first, second, nn.Linear(512, 2))


def broken():
    raise ZeroDivisionError("the user's own mistake")


def data(samples=4096):
    inputs = torch.ones(samples, 20)
    sets = TensorDataset(inputs, torch.zeros(samples, dtype=torch.int64))
    return sets, sets
"""
CONFIG = """
name: own
model: {path: "own:build"}
data: {path: "own:data", global_batch_size: 4096}
optimizer: {name: adamw}
trainer: {max_steps: 5}
scaling: {num_workers: 2, use_gpu: false}
"""
FIXED_NAMES = {"parameters", "flops_per_sample", "peak_memory_bytes", "memory", "grid"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(CONFIG)
    yield tmp_path
    sys.modules.pop("own", None)  # other tests have one, too


def answer(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code of `plan`, its stdout and its stderr, those of its process included."""
    code = cli.run(["plan", "own.yaml", *arguments])
    return code, *capfd.readouterr()


def test_it_predicts_the_users_own_model_and_leaves_nothing_behind(
    capfd: pytest.CaptureFixture[str], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Although a config that was looked at before has left a module of the same name in the import path."""
    other = tmp_path_factory.mktemp("other")
    (other / "own.py").write_text("def data(): ...\ndef build(): ...\n")
    make_importable([other])
    code, out, err = answer(capfd, "--json", "--memory", "14MiB")
    assert code == 0, err
    assert "printed by the user's model" in err
    found = json.loads(out)
    assert found.keys() >= FIXED_NAMES
    weights = 20 * 512 + 512 + 512 * 512 + 512 + 512 * 2 + 2
    assert found["parameters"] == weights
    assert found["flops_per_sample"] == 6 * (20 * 512 + 512 * 512 + 512 * 2) - 2 * 20 * 512
    assert found["memory"].keys() == {"weights", "gradients", "optimizer", "activations", "workspace"}
    assert sum(found["memory"].values()) == found["peak_memory_bytes"]
    assert found["memory"]["weights"] == 4 * weights
    assert found["device_memory_bytes"] == 14 * 2**20
    assert found["derived"]["batch"]["micro_batch_size"] == found["micro_batch_size"] == 2048
    for point in found["grid"]:
        assert point["fits"] == (point["peak_memory_bytes"] <= 14 * 2**20)
        made = load_config("own.yaml", point["overrides"])
        assert batch_sizes(made).global_batch_size == 4096
    assert any(point["fits"] for point in found["grid"])
    assert not all(point["fits"] for point in found["grid"])
    own = found["grid"][0]
    assert own["overrides"]["data.micro_batch_size"] == 2048
    assert own["peak_memory_bytes"] == found["peak_memory_bytes"]
    assert found["cheapest"]["data.micro_batch_size"] < 2048
    assert sorted(path.name for path in folder.iterdir()) == ["own.py", "own.yaml"]


@pytest.mark.usefixtures("separate_processes_are_forked")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["model.path=own:broken"], 1),
        pytest.param(["data={name: image_folder, root: nowhere, global_batch_size: 2}"], 3, marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_ends_as_with_train(
    capfd: pytest.CaptureFixture[str], arguments: Sequence[str], code: int
) -> None:
    answered, out, err = answer(capfd, *arguments)
    assert answered == code
    assert ("ZeroDivisionError" in err) == (code == 1)
    assert not out


@pytest.mark.usefixtures("separate_processes_are_forked")
def test_from_python_with_objects(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import own

    def wide() -> Any:
        return own.nn.Linear(20, 2)

    found = paceline.plan(load_config("own.yaml"), memory_bytes=2**30, model=wide, data=own.data())
    assert isinstance(found, MemoryPlan)
    assert found.parameters == 42
    # the model has no blocks: what cannot be checkpointed is not in the grid
    assert {point.overrides["trainer.activation_checkpointing"] for point in found.grid} == {"none"}
    assert found.fits


@pytest.mark.slow
def test_the_largest_that_fits_is_looked_for(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capfd, "--json", "--memory=1GiB", "data.micro_batch_size=max", "scaling.num_workers=1")
    assert code == 0
    assert json.loads(out)["cheapest"]["data.micro_batch_size"] == 4096
