"""`paceline lint` as a user meets it, and lint in a process of its own as a tune-up runs it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import load_config
from paceline.cli import run as command
from paceline.linting.apart import LintApart

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


def broken():
    raise OSError("no weights")
"""
YAML = """
name: own
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
scaling: {num_workers: 0}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(YAML)
    yield
    sys.modules.pop("own_net", None)  # other tests have one, too


def test_the_command_names_the_line_and_exits_with_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["lint", "own.yaml", "--json"]) == 1
    out, err = capfd.readouterr()
    (finding,) = json.loads(out)["findings"]
    assert (finding["rule"], finding["severity"]) == ("softmax-before-cross-entropy", "error")
    assert finding["place"].endswith("own_net.py:13")
    assert "Traceback" not in err


@pytest.mark.usefixtures("separate_processes_are_forked")
def test_a_model_that_cannot_be_built_is_left_to_whoever_trains_it() -> None:
    look = LintApart(load_config("own.yaml", ["model.path=own_net:broken"]))
    try:
        assert look.findings_at_best() == []
    finally:
        look.end()
