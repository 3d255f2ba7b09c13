"""`paceline train` in a terminal that is closed: it saves its state, and the same command resumes it."""

import json
import os
import pty
import shutil
from functools import partial
from pathlib import Path

from support.cli.terminal import sit_at
from support.runs.command_process import CommandProcess

CONFIG = """\
name: tiny
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 25, log_every_n_steps: 1}
scaling: {num_workers: 0, use_gpu: false}
checkpoint: {every_n_epochs: 25}
"""
STEPS = 100
OWN_NET = """
import time
from pathlib import Path

import torch


class Net(torch.nn.Linear):
    def forward(self, batch):
        if self.training:
            Path("trains").touch()
            if Path("slow").exists():
                time.sleep(0.05)
        return super().forward(batch)


def build():
    return Net(8, 4)
"""


def test_a_closed_terminal_saves_and_the_same_command_resumes(tmp_path: Path, prepared_database: Path) -> None:
    user = CommandProcess(tmp_path, {}, forks_uploader=False)  # it is in the terminal's process group
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "own_net.py").write_text(OWN_NET)
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    (tmp_path / "slow").touch()
    controller, terminal = pty.openpty()
    try:
        user.give("train", "tiny.yaml", "--json", prepare=partial(sit_at, os.ttyname(terminal)))
        user.until((tmp_path / "trains").exists)
        os.close(terminal)
        os.close(controller)
        assert user.end() == 130, user.told()
        stopped = json.loads((tmp_path / "stdout").read_text())
        (tmp_path / "slow").unlink()
        (file,) = (tmp_path / "runs" / "tiny").glob("*/run.json")
        assert (stopped["status"], json.loads(file.read_text())["status"]) == ("interrupted", "interrupted")
        assert 0 < stopped["steps"] < STEPS
        assert (Path(stopped["checkpoint"]) / "MANIFEST.json").is_file()
        user.forks_uploader = True
        user.give("train", "tiny.yaml", "--json")
        resumed = user.result()
        user.give("train", "tiny.yaml", "--json", "--new")
        whole = user.result()
    finally:
        user.leave()
    assert (resumed["run_id"], resumed["steps"]) == (stopped["run_id"], STEPS)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
