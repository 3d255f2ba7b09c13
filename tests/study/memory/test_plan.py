"""`paceline plan` and `plan()` as a user meets them: tables, JSON, exit codes, and that nothing is left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import ConfigError, MemoryPlan, cli, load_config
from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.study.memory.grid import grid_of, micro_batch_sizes
from paceline.study.memory.plan import GridPoint, cheapest_of

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Looking(nn.Sequential):
    def forward(self, inputs):
        print("printed by the user's model")
        return super().forward(inputs if inputs.mean().item() < 9 else -inputs)


def build(kind=nn.Sequential):
    first, second = nn.Sequential(nn.Linear(20, 512), nn.ReLU()), nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    return kind(first, second, nn.Linear(512, 2))


def looking():
    return build(Looking)


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
    capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    code, out, err = answer(capfd, "--json", "--memory", "14MiB")
    assert code == 0, err
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


def test_modules_of_another_folder_do_not_take_the_place_of_ones_own(
    capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a config that was looked at before."""
    other = tmp_path_factory.mktemp("other")
    (other / "own.py").write_text("def data(): ...\ndef build(): ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    code, out, err = answer(capfd, "--json")
    assert code == 0, err
    assert json.loads(out)["parameters"] > 0


def test_a_model_that_looks_at_its_numbers_is_planned_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capfd, "model.path=own:looking", "scaling.num_workers=0")
    assert code == 0
    assert "warning: the model cannot be traced on tensors without data" in err
    assert "printed by the user's model" in err
    assert "printed by" not in out
    assert "cheapest that fits  data.micro_batch_size=4096" in out
    assert "micro batch  precision" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["trainer.precisoin=bf16-mixed"], 2, "did you mean trainer.precision?"),
        (["data.global_batch_size=255"], 2, "255 does not divide evenly by 2 workers"),
        (["model.path=own:bild"], 2, "has no 'bild'"),
        (["model.path=own:broken"], 1, "ZeroDivisionError: the user's own mistake"),
        (["data={name: image_folder, root: nowhere, global_batch_size: 2}"], 3, "nowhere"),
    ],
)
def test_what_is_wrong_is_told_as_train_tells_it(
    capfd: pytest.CaptureFixture[str], arguments: Sequence[str], code: int, text: str
) -> None:
    answered, out, err = answer(capfd, *arguments)
    assert answered == code
    assert text in err
    assert not out


@pytest.mark.parametrize("size", ["much", "0", "-1GiB", "3 cm"])
def test_memory_that_is_no_size_is_refused(capfd: pytest.CaptureFixture[str], size: str) -> None:
    with pytest.raises(SystemExit) as ended:
        answer(capfd, f"--memory={size}")
    assert ended.value.code == 2
    assert "is no size, such as 16GiB" in capfd.readouterr().err


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


def test_the_largest_that_fits_is_looked_for(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capfd, "--json", "--memory=1GiB", "data.micro_batch_size=max", "scaling.num_workers=1")
    assert code == 0
    assert json.loads(out)["cheapest"]["data.micro_batch_size"] == 4096


def test_help_does_not_import_torch() -> None:
    look = "import sys, paceline.cli; paceline.cli.build_parser(); print(sorted({'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_the_grid_keeps_the_global_batch_and_says_each_config_once() -> None:
    config = load_config("own.yaml", {"trainer.gradient_accumulation_steps": 4, "data.global_batch_size": 96})
    assert micro_batch_sizes(config) == [48, 24, 12, 6, 3]
    made = grid_of(config)
    assert len(made) == 5 * 2 * 3
    for overrides in made.values():
        sizes = batch_sizes(config.with_overrides(overrides))
        assert isinstance(sizes, BatchSizes)
        assert sizes.global_batch_size == 96
    first = next(iter(made.values()))
    assert first["trainer.precision"] == "32-true"
    assert first["trainer.activation_checkpointing"] == "none"
    with pytest.raises(ConfigError):
        config.with_overrides({"data.micro_batch_size": 48})  # without the accumulation that follows


def test_the_cheapest_changes_the_least() -> None:
    def point(size: int, mode: str, fits: bool, tight: bool = False) -> GridPoint:
        overrides = {
            "data.micro_batch_size": size,
            "trainer.precision": "32-true",
            "trainer.activation_checkpointing": mode,
        }
        return GridPoint(overrides, 0, fits, tight)

    plain, barely, roomy, checkpointed = (
        point(64, "none", False),
        point(32, "none", True, tight=True),
        point(16, "none", True),
        point(64, "full", True),
    )
    assert cheapest_of([plain, barely, roomy, checkpointed]) is roomy
    assert cheapest_of([plain, barely, checkpointed]) is barely
    assert cheapest_of([plain, checkpointed]) is checkpointed
    assert cheapest_of([plain]) is None
