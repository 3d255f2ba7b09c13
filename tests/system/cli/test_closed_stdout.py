"""Commands whose output nobody reads to its end, as with `| head -3`."""

import json
from pathlib import Path

import pytest

from support.runs.command_process import CommandProcess, leave_no_reader
from support.tracking.recording import DEAD

CONFIG = """\
name: tiny
model: {name: mlp, in_features: 8, hidden: [8], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 1}
scaling: {num_workers: 0, use_gpu: false}
tracking: {offline: allow}
"""


@pytest.fixture
def user(tmp_path: Path) -> CommandProcess:
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return CommandProcess(tmp_path, {"MLFLOW_TRACKING_URI": DEAD})


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_training_is_finished_all_the_same(user: CommandProcess, flags: tuple[str, ...]) -> None:
    """Otherwise the same command would give the answer of this one again, in place of a new training."""
    user.give("train", "tiny.yaml", *flags, prepare=leave_no_reader)
    assert user.end() == 0, user.told()
    (record,) = user.folder.glob("runs/tiny/*/run.json")
    assert json.loads(record.read_text())["status"] == "finished"
    assert "Traceback" not in user.told()
    assert "BrokenPipe" not in user.told()


def test_a_list_ends_without_a_traceback(user: CommandProcess) -> None:
    user.give("schema", prepare=leave_no_reader)
    assert user.end() == 1
    assert user.told() == ""
