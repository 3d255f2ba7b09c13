"""The command line in process: its exit code, and what it wrote to stdout and to stderr."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.cli.command import Ended, run_in_process

CONFIG = """\
name: tiny
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 25, log_every_n_steps: 5}
scaling: {num_workers: 0, use_gpu: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder: a config and the user's code."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "own_net.py").write_text("def build(): ...\n")
    return folder


@pytest.fixture
def command(folder: Path) -> Callable[..., Ended]:
    """Run a command in the working folder."""
    return partial(run_in_process, folder)
