"""`--init-from`: training and sweeps that start from the weights of a run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.rebuilding import evaluated_weights
from paceline.engine.state import weights_sha256
from support.runs.command_process import CommandProcess
from support.tracking.recording import DEAD

CONFIG = """\
name: base
model: {name: mlp, in_features: 8, hidden: [8], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
optimizer: {name: sgd, lr: 0.1}
callbacks: [{name: ema}]
trainer: {epochs: 2}
checkpoint: {every_n_steps: 2}
scaling: {num_workers: 0, use_gpu: false}
tracking: {offline: allow}
sweep: {space: {optimizer.lr: [0.0, 0.1]}, metric: val/loss}
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[CommandProcess]:
    """A folder with a config."""
    user = CommandProcess(tmp_path, {"MLFLOW_TRACKING_URI": DEAD})
    (tmp_path / "base.yaml").write_text(CONFIG.replace("[0.0, 0.1]", "[0.01, 0.1]"))
    yield user
    user.leave()


def record(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "tracking" / "record.json").read_text()))


def tags(run: Path) -> dict[str, str]:
    """Those that were set while the run trained."""
    entries = [json.loads(line) for line in (run / "tracking" / "journal.jsonl").read_text().splitlines()]
    found: dict[str, str] = {}
    for entry in entries:
        found.update(entry.get("content", entry).get("tags", {}))
    return found


def test_a_run_starts_from_the_averages_of_another_and_says_so(user: CommandProcess) -> None:
    user.give("train", "base.yaml", "--json")
    user.result()
    (base,) = user.folder.glob("runs/base/2*")
    averages = weights_sha256(evaluated_weights(base / "checkpoints" / "step-8"))
    user.give("train", "base.yaml", "name=tuned", "--init-from", "base", "--json")
    result = user.result()
    run = user.folder / "runs" / "tuned" / result["run_id"]
    pinned = f"base/{base.name}"
    assert json.loads((run / "run.json").read_text())["config"]["model"]["weights"] == pinned
    assert record(run)["params"]["model.weights"] == pinned
    assert tags(run)["paceline.initial_weights"] == pinned
    assert tags(run)["paceline.initial_weights_sha256"] == averages
    user.give("train", "base.yaml", "name=again", f"model.weights={base}", "--json")
    assert user.result()["weights_sha256"] == result["weights_sha256"]


@pytest.mark.slow
def test_plan_and_lint_build_a_model_that_starts_from_a_run(user: CommandProcess) -> None:
    user.give("train", "base.yaml")
    assert user.end() == 0, user.told()
    for command in ("plan", "lint"):
        user.give(command, "base.yaml", "model.weights=base")
        assert user.end() == 0, user.told()


@pytest.mark.parametrize("command", [("train",), ("train", "--dry-run"), ("sweep",), ("sweep", "--dry-run")])
def test_missing_weights_are_found_before_anything_starts(user: CommandProcess, command: tuple[str, ...]) -> None:
    user.give(*command, "base.yaml", "name=tuned", "--init-from", "nowhere")
    assert user.end() == 2
    told = user.told()
    assert "override 'model.weights=\"nowhere\"': model.weights: " in told
    assert " [no-weights]\n    hint: " in told
    assert not list(user.folder.glob("runs/tuned/2*"))
