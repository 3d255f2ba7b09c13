"""Runs in the test's own process: their config, and the folder that they are started from."""

from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import ExperimentConfig, validate


def local_config(**changes: Any) -> ExperimentConfig:
    """A config that trains in this process; keys with `__` for dots change it."""
    tree = {
        "name": "run",
        "model": {"name": "mlp"},
        "data": {"name": "synthetic", "global_batch_size": 32},
        "scaling": {"num_workers": 0, "use_gpu": False},
    }
    return validate(tree).with_overrides({key.replace("__", "."): value for key, value in changes.items()})


def enter_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder whose MLflow database needs no process of its own to be made."""
    monkeypatch.chdir(folder)
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    (folder / "mlflow.db").touch()
    return folder
