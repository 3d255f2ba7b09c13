"""An installed package that registers one component of each kind by entry point."""

import json
import shutil
from pathlib import Path

import pytest

from support.cli.command import run_command

MODULE = """
import torch
from paceline import Callback, Task, TaskOutput
from torch import nn
from torch.utils.data import TensorDataset

def net(width=4):
    return nn.Linear(3, width)

def data():
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    sets = TensorDataset(inputs[:32], inputs[:32, 0] > 0), TensorDataset(inputs[32:], inputs[32:, 0] > 0)
    return sets

class Loss(Task):
    def forward(self, batch):
        inputs, targets = batch
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits, targets.long(), reduction="sum")
        return TaskOutput(loss, len(targets), predictions=logits.argmax(dim=1), targets=targets.long())

class Descent(torch.optim.SGD):
    pass

def half(step, total_steps):
    return 0.5

class Hits:
    def update(self, predictions, targets):
        self.right, self.all = self.right + int((predictions == targets).sum()), self.all + len(targets)
    def compute(self):
        return self.right / self.all
    def reset(self):
        self.right = self.all = 0
    __init__ = reset

class Noting(Callback):
    def on_step_end(self, ctx):
        ctx.log("noted", ctx.step)
"""
KINDS = {
    "models": "net",
    "data": "data",
    "tasks": "Loss",
    "optimizers": "Descent",
    "lr_schedulers": "half",
    "metrics": "Hits",
    "callbacks": "Noting",
}
CONFIG = """
name: registered
task: {name: theirs}
model: {name: theirs, args: {width: 2}}
data: {name: theirs, global_batch_size: 8}
optimizer: {name: theirs, lr: 0.5}
lr_scheduler: {name: theirs}
metrics: [{name: theirs}]
callbacks: [{name: theirs}]
trainer: {epochs: 2, log_every_n_steps: 1}
scaling: {num_workers: 0}
tracking: {offline: allow}
sweep: {metric: val/theirs, space: {optimizer.name: [theirs, sgd]}}
"""


@pytest.fixture
def folder(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder beside an installed package."""
    installed = tmp_path / "installed"
    information = installed / "their_package-1.0.dist-info"
    information.mkdir(parents=True)
    (installed / "their_package.py").write_text(MODULE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    groups = (f"[paceline.{kind}]\ntheirs = their_package:{name}\n" for kind, name in KINDS.items())
    (information / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    work = tmp_path / "work"
    work.mkdir()
    (work / "experiment.yaml").write_text(CONFIG)
    shutil.copy(prepared_database, work / "mlflow.db")
    return work


def test_the_components_are_seen_everywhere(folder: Path) -> None:
    schema = json.loads(run_command(folder, "schema").out)
    named = [each for each in schema["$defs"].values() if each["properties"].get("name", {}).get("const") == "theirs"]
    assert len(named) == len(KINDS) - 1, "a metric has a free name"
    planned = run_command(folder, "train", "experiment.yaml", "--dry-run")
    assert (planned.code, "optimizer" in planned.err + planned.out) == (0, True)
    misspelt = run_command(folder, "train", "experiment.yaml", "--dry-run", "optimizer.name=thiers")
    assert misspelt.code == 2
    assert "theirs" in misspelt.err
    swept = run_command(folder, "sweep", "experiment.yaml", "--dry-run")
    assert swept.code == 0, swept.err


def test_they_train(folder: Path) -> None:
    ended = run_command(folder, "train", "experiment.yaml", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["metrics"]["noted"] == 8
    assert ended.json["metrics"]["lr"] == 0.25
    assert 0 <= ended.json["metrics"]["val/theirs"] <= 1
