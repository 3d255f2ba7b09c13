"""Runs in the test's own process: their config, and the folder that they are started from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cluster.run_folder import RunFolder
from paceline.cluster.unfinished_runs import ClaimedRun, claim_run
from paceline.config.experiment import ExperimentConfig, validate
from paceline.engine.checkpoint_files import Snapshot, write_checkpoint


def local_config(**changes: Any) -> ExperimentConfig:
    """A config that trains in this process; keys with `__` for dots change it."""
    tree = {
        "name": "run",
        "model": {"name": "mlp"},
        "data": {"name": "synthetic", "global_batch_size": 32},
        "scaling": {"num_workers": 0, "use_gpu": False},
    }
    return validate(tree).with_overrides({key.replace("__", "."): value for key, value in changes.items()})


def small_config(**changes: Any) -> ExperimentConfig:
    """The same with 64 samples of eight numbers, two steps in an epoch."""
    model = {"name": "mlp", "in_features": 8, "num_classes": 4}
    data = {"name": "synthetic", "shape": [8], "num_classes": 4, "num_samples": 64, "global_batch_size": 32}
    return local_config(**{"model": model, "data": data, **changes})


def enter_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder whose MLflow database needs no process of its own to be made, and whose runs draw no picture."""
    monkeypatch.chdir(folder)
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("paceline.tracking.run_recorder.loss_curve", lambda curves, file, title: file.touch())
    (folder / "mlflow.db").touch()
    return folder


def save_checkpoint(checkpoints: Path, step: int, epoch: int = 1) -> Path:
    """Write a checkpoint of two weights at the end of an epoch."""
    values = {"position": {"step": step, "epoch": epoch, "epoch_samples": 0, "samples": 8 * step}}
    return write_checkpoint(checkpoints, Snapshot(step, {"model": {"w": torch.ones(2)}}, values))


def left_run(
    storage: Path,
    status: str | None = None,
    step: int = 0,
    epoch: int = 1,
    config: ExperimentConfig | None = None,
    **options: Any,
) -> ClaimedRun[RunFolder]:
    """Claim a run, leave a status and a checkpoint as training would, and release it."""
    run = claim_run(config or local_config(), storage, **options)
    if step:
        save_checkpoint(run.folder.checkpoints, step, epoch)
    if status:
        run.folder.write(status=status)
    run.release()
    return run
