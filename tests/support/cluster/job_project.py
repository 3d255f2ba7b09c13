"""A user's project whose config is submitted to a cluster."""

import sys
from pathlib import Path

import pytest

from paceline import cli

NET = "import torch\n\n\ndef build(width=4, api_key=''):\n    return torch.nn.Linear(8, width)\n"
CONFIG = """\
name: own
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, global_batch_size: 16}
scaling: {num_workers: 1}
storage: {path: /shared/runs}
tracking: {uri: "sqlite:////shared/mlflow.db"}
"""
SWEEP = "sweep={space: {optimizer.lr: [0.1, 0.2]}}"
SECRET = "canary-0123456789"
FILE = "configs/own.yaml"
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS", "MLFLOW_TRACKING_URI", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


def enter_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project and go there, for the length of a test."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "own_net.py").write_text(NET)
    (folder / FILE).write_text(CONFIG)
    monkeypatch.chdir(folder)
    return folder


def paceline_submit(*arguments: str) -> int:
    """The exit code of `paceline submit`."""
    try:
        return cli.run(["submit", *arguments])
    except SystemExit as end:  # argparse's own refusals
        return int(end.code or 0)
