"""`paceline scale --dry-run`: what would be trained, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as command

CONFIG = """
name: previewed
model: {name: mlp, in_features: 6, num_classes: 3, hidden: [8]}
data: {path: "support.toys:points", args: {train: 640, validation: 30}, global_batch_size: 8}
optimizer: {name: sgd, lr: 0.05}
trainer: {epochs: 40, precision: 32-true}
scaling: {num_workers: 2}
scale: {target: {val/loss: 0.4}, seeds: 2}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.bench.own_digests.imported_files", dict)  # all tests: parsing them takes a second
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path / "own.yaml"


def printed(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> Any:
    assert command(["scale", str(file), "--dry-run", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_lists_trainings_and_batch_sizes_and_leaves_nothing_behind(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, file)
    assert (found["target"], found["own_batch_size"], found["train_samples"]) == ({"val/loss": 0.4}, 8, 640)
    branches = {(each["start_samples"], each["batch_size"]) for each in found["trainings"] if each["name"] == "branch"}
    assert branches == {(0, 16), (0, 32), (0, 64), (0, 128), (5120, 32), (8960, 32)}
    assert found["most_samples"] == sum(each["most_samples"] for each in found["trainings"])
    assert {row["workers"] for row in found["table"]} == {1, 2, 4, 8}
    assert {row["workers"] for row in found["table"] if not row["is_extrapolated"]} == {2}
    assert command(["scale", str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("branch, ")]) == len(branches)
    assert [path.name for path in file.parent.iterdir() if path.name != "__pycache__"] == ["own.yaml"]


def test_options_of_the_command_count(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainings = printed(capsys, file)["trainings"]
    names, verified = [each["name"] for each in trainings], trainings[-2:]
    # the config as it is was trained with the first seed already
    assert [(each["batch_size"], each["seeds"]) for each in verified] == [(8, [1, 2, 3]), (None, [0, 1, 2, 3])]
    changed = printed(capsys, file, "--no-verify", "--target", "val/accuracy=0.9", "--budget-seconds", "50")
    assert [each["name"] for each in changed["trainings"]] == names[:-2]
    assert (changed["target"], changed["budget_seconds"]) == ({"val/accuracy": 0.9}, 50)
    assert printed(capsys, file, "scale.target=null")["target"] is None


@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [
        (["data.args={train: -5}"], 1, "[baseline-failed]"),
        (["data.path=nowhere:data", "data.args={}"], 2, "nowhere"),
        (["data.micro_batch_size=max", "trainer.gradient_accumulation_steps=auto"], 2, "[not-studied]"),
        (["scale.batch_sizes=[12, 7]"], 2, "error"),
    ],
)
def test_a_config_that_cannot_be_studied_is_an_error(
    file: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], code: int, told: str
) -> None:
    assert command(["scale", str(file), "--dry-run", *overrides]) == code
    assert told in capsys.readouterr().err
