"""The command line in process: its exit code, and what it wrote to stdout and to stderr."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli import run
from support.cli.command import Ended

CONFIG = """\
name: tiny
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 25, log_every_n_steps: 5}
scaling: {num_workers: 0, use_gpu: false}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a config and the user's code."""
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "own_net.py").write_text("def build(): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in the working folder."""

    def command(*arguments: str) -> Ended:
        try:
            code = run(arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        return Ended(code, *capsys.readouterr())

    return command
