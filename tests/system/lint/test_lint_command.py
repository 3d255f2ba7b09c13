"""`paceline lint` as a process, and lint in a process of its own as a tune-up runs it."""

import json
import subprocess
import sys
from pathlib import Path

from paceline import load_config
from paceline.study.lint.apart import LintApart

OWN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        print("the user's own text")
        return torch.softmax(self.layer(x), dim=1)


def build():
    return Net()
"""
YAML = """
name: own
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
scaling: {num_workers: 0}
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`paceline lint own.yaml` with more arguments."""
    (folder / "own_net.py").write_text(OWN)
    (folder / "own.yaml").write_text(YAML)
    line = [sys.executable, "-m", "paceline.cli", "lint", "own.yaml", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_the_command_names_the_line_and_exits_with_1(tmp_path: Path) -> None:
    ended = command(tmp_path, "--json")
    assert ended.returncode == 1, ended.stderr
    (finding,) = json.loads(ended.stdout)["findings"]
    assert (finding["rule"], finding["severity"]) == ("softmax-before-cross-entropy", "error")
    assert finding["place"].endswith("own_net.py:13")
    assert "Traceback" not in ended.stderr


def test_a_model_that_cannot_be_built_is_left_to_whoever_trains_it(tmp_path: Path) -> None:
    (tmp_path / "broken_net.py").write_text("def build(): raise OSError('no weights')")
    (tmp_path / "own.yaml").write_text("name: own\nmodel: {path: 'broken_net:build'}\ndata: {name: mnist5k}\n")
    look = LintApart(load_config(tmp_path / "own.yaml"))
    try:
        assert look.findings_at_best() == []
    finally:
        look.end()
