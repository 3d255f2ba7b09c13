"""`paceline tuneup --dry-run`: what would be tried, and nothing else."""

import json
from pathlib import Path

import pytest

from paceline.cli import run as command

CONFIG = """
name: previewed
model: {name: mlp, in_features: 6, num_classes: 3, hidden: [8]}
data: {path: "support.toys:points", args: {train: 640, validation: 30}, global_batch_size: 16}
optimizer: {name: sgd, lr: 0.05}
trainer: {epochs: 2, precision: 32-true}
scaling: {num_workers: 2}
tuneup: {techniques: {mine: {optimizer.lr: 0.2}}, skip: [compile]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.bench.own_digests.imported_files", dict)  # all tests: parsing them takes a second
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path / "own.yaml"


def test_it_lists_the_techniques_and_leaves_nothing_behind(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["tuneup", str(file), "--dry-run", "--json"]) == 0
    techniques = {technique["name"]: technique for technique in json.loads(capsys.readouterr().out)["techniques"]}
    assert techniques["mine"]["overrides"] == {"optimizer.lr": 0.2}
    assert techniques["cache-memory"]["overrides"] == {"data.cache": "memory", "data.num_workers": 0}
    is_tried = {"mine": True, "cache-memory": True, "compile": False, "channels-last": False, "exchange-bf16": True}
    assert {
        name: not techniques[name]["why_not"] for name in is_tried
    } == is_tried  # the last one is for several workers
    assert command(["tuneup", str(file), "--dry-run"]) == 0
    tried = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert tried == sorted(tried, reverse=True)  # what is tried comes first
    assert {"yes", "no"} == set(tried)
    assert [path.name for path in file.parent.iterdir() if path.name != "__pycache__"] == ["own.yaml"]


@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [(["data.args={train: -5}"], 1, "baseline"), (["data.path=nowhere:data", "data.args={}"], 2, "nowhere")],
)
def test_a_config_that_cannot_be_built_is_an_error(
    file: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], code: int, told: str
) -> None:
    assert command(["tuneup", str(file), "--dry-run", *overrides]) == code
    assert told in capsys.readouterr().err
