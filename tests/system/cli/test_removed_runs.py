"""`rm -rf runs` while `paceline train` works there: an error, and an MLflow run that has ended."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from support.runs.command_process import CommandProcess
from support.tracking.killing import read_mlflow

CONFIG = """\
name: killed
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 500, log_every_n_steps: 1}
checkpoint: {every_n_epochs: 2}
"""
OWN_NET = """
import time

import torch


class Net(torch.nn.Linear):
    def forward(self, batch):
        time.sleep(0.05)
        return super().forward(batch)


def build():
    return Net(8, 4)
"""
ON_RAY = ("scaling.num_workers=1", "scaling.cpus_per_worker=0.5", "scaling.use_gpu=false")


@pytest.mark.parametrize(
    "scaling",
    [
        pytest.param(("scaling.num_workers=0", "scaling.use_gpu=false"), id="in process"),
        pytest.param(ON_RAY, id="on Ray", marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def test_removed_runs_end_the_command_and_the_mlflow_run(
    tmp_path: Path, prepared_database: Path, scaling: tuple[str, ...]
) -> None:
    user = CommandProcess(tmp_path, {}, forks=scaling != ON_RAY)
    (tmp_path / "killed.yaml").write_text(CONFIG)
    (tmp_path / "own_net.py").write_text(OWN_NET)
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    shipped = (tmp_path / "runs").glob
    try:
        user.give("train", "killed.yaml", "--json", *scaling)
        user.until(
            lambda: any(json.loads(file.read_text())["sequence"] > 20 for file in shipped("*/*/*/uploaded.json"))
        )
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        assert user.end() == 3, user.told()
        told = json.loads((tmp_path / "stdout").read_text())
        assert (told["status"], told["code"]) == ("failed", "run-folder-removed")
        mlflow = read_mlflow(uri)
        assert mlflow.statuses == ["FAILED"]
        assert set(Counter((point.key, point.step) for point in mlflow.points).values()) == {1}
        losses = sorted(point.step for point in mlflow.points if point.key == "train/loss")
        assert losses == list(range(1, len(losses) + 1))
        saved = (tmp_path / "runs").glob("killed/*/checkpoints/step-*/MANIFEST.json")
        assert max(json.loads(file.read_text())["step"] for file in saved) == losses[-1]
        user.give("sync", "--json")
        assert user.end() == 0, user.told()
        report = json.loads((tmp_path / "stdout").read_text())
        assert [each["state"] for each in report["records"]] == ["complete"]
        assert read_mlflow(uri).statuses == ["FAILED"]
    finally:
        user.leave()
