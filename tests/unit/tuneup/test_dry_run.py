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
tuneup: {arms: {mine: {optimizer.lr: 0.2}}, skip: [compile]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path / "own.yaml"


def test_it_lists_the_techniques_and_leaves_nothing_behind(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*overrides: str) -> dict[str, tuple[bool, object]]:
        """By technique, whether it would be tried, and what it sets."""
        assert command(["tuneup", str(file), "--dry-run", "--json", *overrides]) == 0
        arms = json.loads(capsys.readouterr().out)["arms"]
        return {arm["name"]: (not arm["why_not"], arm["overrides"]) for arm in arms}

    arms = listed()
    assert arms["mine"] == (True, {"optimizer.lr": 0.2})
    assert arms["cache-memory"] == (True, {"data.cache": "memory", "data.num_workers": 0})
    assert [arms[name][0] for name in ("compile", "channels-last", "exchange-bf16")] == [False, False, True]
    assert not listed("scaling.num_workers=1")["exchange-bf16"][0]
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
