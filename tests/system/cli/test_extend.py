"""`paceline train --extend`, killed in the middle and given again."""

import json
from pathlib import Path
from typing import Any

from support.runs.command_process import CommandProcess
from support.tracking.recording import DEAD

CONFIG = """\
name: net
model: {name: mlp, in_features: 8, hidden: [8], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
callbacks: [{name: ema}, {path: "own_kill:Kill"}]
trainer: {epochs: 2, precision: 64-true}
checkpoint: {every_n_steps: 2}
scaling: {num_workers: 0, use_gpu: false}
tracking: {offline: allow}
"""
OWN_KILL = """
import os
import signal
from pathlib import Path

from paceline import Callback


class Kill(Callback):
    def on_step_end(self, ctx):
        wanted = Path("kill-at")
        if wanted.exists() and ctx.step == int(wanted.read_text()):
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def result(user: CommandProcess, *arguments: str) -> dict[str, Any]:
    user.give("train", "net.yaml", "--json", *arguments)
    return user.result()


def test_an_extension_that_was_killed_ends_with_the_bits_of_the_longer_run(tmp_path: Path) -> None:
    user = CommandProcess(tmp_path, {"MLFLOW_TRACKING_URI": DEAD})
    (tmp_path / "net.yaml").write_text(CONFIG)
    (tmp_path / "own_kill.py").write_text(OWN_KILL)
    try:
        whole = result(user, "storage.path=whole", "trainer.epochs=5")
        first = result(user)
        (tmp_path / "kill-at").write_text("15")
        user.give("train", "net.yaml", "--extend", "trainer.epochs=5", "--json")
        assert user.end() == -9
        extended = result(user, "--extend", "trainer.epochs=5")
        assert extended["weights_sha256"] == whole["weights_sha256"] != first["weights_sha256"]
        (run,) = [path for path in (tmp_path / "runs" / "net").iterdir() if path.name == extended["run_id"]]
        content = json.loads((run / "run.json").read_text())
        assert (content["status"], content["extended_from"]) == ("finished", first["run_id"])
        tags = json.loads((run / "tracking" / "record.json").read_text())["tags"]
        assert tags["paceline.extended_from"] == first["run_id"]
        assert len(list((tmp_path / "runs" / "net").glob("2*"))) == 2
        user.give("train", "net.yaml", "--extend", "trainer.epochs=5")
        assert user.end() == 2
        assert "override 'trainer.epochs=5'" in user.told()
    finally:
        user.leave()
