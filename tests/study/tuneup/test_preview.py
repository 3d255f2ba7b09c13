"""`paceline tuneup --dry-run`: what would be tried, and nothing else."""

from __future__ import annotations

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
tuneup: {arms: {mine: {optimizer.lr: 0.2}}, skip: [compile]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path / "own.yaml"


def told(file: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, tuple[str, object]]:
    """By name, why it is not tried, and what it sets."""
    assert command(["tuneup", str(file), "--dry-run", "--json", *overrides]) == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    return {arm["name"]: (arm["why_not"], arm["overrides"]) for arm in arms}


def test_it_lists_what_would_be_tried_and_leaves_nothing_behind(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = told(file, capsys)
    assert arms["mine"] == ("", {"optimizer.lr": 0.2})
    assert arms["cache-memory"] == ("", {"data.cache": "memory", "data.num_workers": 0})
    assert arms["compile"][0] == "tuneup.skip names it"
    assert arms["channels-last"][0] == "the model has no convolution"
    assert arms["exchange-bf16"][0] == ""  # there would be two workers
    assert told(file, capsys, "scaling.num_workers=1")["exchange-bf16"][0] == "one process exchanges no gradients"
    assert [path.name for path in file.parent.iterdir() if path.name != "__pycache__"] == ["own.yaml"]


def test_as_a_table_what_is_tried_comes_first(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["tuneup", str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tried = [line.split()[1] for line in lines[1:]]
    assert lines[0].split()[:3] == ["technique", "tried", "sets"]
    assert tried == sorted(tried, reverse=True)
    assert {"yes", "no"} == set(tried)
    assert any(line.startswith("mine") and "optimizer.lr=0.2" in line for line in lines)


def test_a_model_that_cannot_be_built_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["tuneup", str(file), "--dry-run", "data.args={train: -5}"]) == 1
    assert "the baseline cannot be built: " in capsys.readouterr().err
    assert command(["tuneup", str(file), "--dry-run", "data.path=nowhere:data", "data.args={}"]) == 2
    assert "nowhere" in capsys.readouterr().err
