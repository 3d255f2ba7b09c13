"""SIGKILL within a hook of a user's callback: the same command ends with the results of the undisturbed run."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support.runs.command_process import CommandProcess
from support.tracking.killing import read_mlflow

CODE = """
import os
import signal

from paceline import Callback


class Counting(Callback):
    steps = 0
    at = 0

    def reached(self, hook, at=8):
        if os.environ.get("KILLED_IN") == hook and self.at >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    def setup(self, ctx):
        self.reached("setup", 0)

    def on_train_start(self, ctx):
        self.reached("on_train_start", 0)

    def on_step_end(self, ctx):
        self.steps, self.at = self.steps + 1, ctx.step
        ctx.log("counted", self.steps)
        self.reached("on_step_end")

    def on_evaluation_end(self, ctx, metrics):
        self.reached("on_evaluation_end")

    def on_epoch_end(self, ctx):
        self.reached("on_epoch_end")

    def on_checkpoint(self, ctx, path):
        self.reached("on_checkpoint")

    def on_train_end(self, ctx):
        self.reached("on_train_end")

    def close(self):
        self.reached("close")

    def state_dict(self):
        self.reached("state_dict")
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]
"""
CONFIG = """\
name: tiny
model: {name: mlp, in_features: 8, hidden: [8], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
callbacks: [{path: "counting:Counting"}]
trainer: {epochs: 5, log_every_n_steps: 1}
checkpoint: {every_n_steps: 3}
scaling: {num_workers: 0, use_gpu: false}
"""
STEPS = 20
COMMAND = ("train", "tiny.yaml", "--json")
IN_CI = ("on_checkpoint", "close")
HOOKS = [
    *("setup", "on_train_start", "on_step_end", "on_evaluation_end", "on_epoch_end", "state_dict", "on_checkpoint"),
    *("on_train_end", "close"),
]


def folder_of(place: Path, database: Path) -> CommandProcess:
    user = CommandProcess(place, {})
    (place / "tiny.yaml").write_text(CONFIG)
    (place / "counting.py").write_text(CODE)
    shutil.copy(database, place / "mlflow.db")
    return user


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> dict[str, Any]:
    user = folder_of(tmp_path_factory.mktemp("whole"), prepared_database)
    user.give(*COMMAND)
    try:
        return user.result()
    finally:
        user.leave()


@pytest.mark.parametrize(
    "hook", [pytest.param(hook, marks=[] if hook in IN_CI else pytest.mark.slow) for hook in HOOKS]
)
def test_the_same_command_ends_as_if_undisturbed(
    tmp_path: Path, prepared_database: Path, undisturbed: dict[str, Any], hook: str
) -> None:
    user = folder_of(tmp_path, prepared_database)
    user.variables["KILLED_IN"] = hook
    try:
        user.give(*COMMAND)
        assert user.end() == -signal.SIGKILL, user.told()
        del user.variables["KILLED_IN"]
        user.give(*COMMAND)
        result = user.result()
    finally:
        user.leave()
    assert (result["steps"], result["weights_sha256"]) == (STEPS, undisturbed["weights_sha256"])
    assert [json.loads(file.read_text())["status"] for file in tmp_path.glob("runs/tiny/*/run.json")] == ["finished"]
    mlflow = read_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert mlflow.statuses == ["FINISHED"]
    counted = {point.step: point.value for point in mlflow.points if point.key == "counted"}
    assert counted == {step: step for step in range(1, STEPS + 1)}
    assert len(mlflow.points) == len({(point.key, point.step) for point in mlflow.points})
