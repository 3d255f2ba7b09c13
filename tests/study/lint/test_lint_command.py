"""`paceline lint` as a user meets it, and findings as lines."""

import json
import subprocess
import sys
from pathlib import Path

from paceline.study.lint import Finding
from paceline.study.lint.display import lines

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


def test_the_command_names_line_and_cure(tmp_path: Path) -> None:
    ended = command(tmp_path)
    assert ended.returncode == 1, ended.stderr
    first, cure, count = ended.stdout.splitlines()
    assert first.startswith("error: own_net.py:13: ")
    assert first.endswith("[softmax-before-cross-entropy]")
    assert cure == "    cure: leave out the softmax in training"
    assert count == "1 error"
    assert "Traceback" not in ended.stderr


def test_the_command_gives_one_json_object(tmp_path: Path) -> None:
    ended = command(tmp_path, "--json", "model={name: mlp, in_features: 8, num_classes: 4}")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"findings": []}), ended.stderr


def test_a_wrong_config_ends_with_2(tmp_path: Path) -> None:
    ended = command(tmp_path, "trainer.epoch=2")
    assert ended.returncode == 2
    assert "trainer.epoch" in ended.stderr


def test_lines_hide_secrets_and_count() -> None:
    secret = "ghp_" + "a1" * 18
    found = [
        Finding("rule", f"own.py:1 {secret}", "reason", "cure", "error"),
        *[Finding("r", "p", "a", "c", "warning")] * 2,
    ]
    shown = lines(found)
    assert secret not in "\n".join(shown)
    assert shown[-1] == "1 error, 2 warnings"
    assert lines([]) == ["no faults found"]
