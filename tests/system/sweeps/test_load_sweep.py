"""A sweep that is opened in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from paceline.config.loading import validate
from support.sweeps.finished import leave_sweep


def test_opening_a_sweep_imports_neither_ray_nor_torch_nor_mlflow(tmp_path: Path) -> None:
    data = {"name": "synthetic", "global_batch_size": 64}
    sweep = {"space": {"optimizer.lr": [0.1, 0.2]}, "metric": "val/accuracy"}
    config = validate({"name": "compare", "model": {"name": "mlp"}, "data": data, "sweep": sweep})
    code = (
        "import json, sys; from paceline import load_sweep; print(len(repr(load_sweep(sys.argv[1]))) > 0);"
        "print(json.dumps([name for name in ('ray', 'torch', 'mlflow') if name in sys.modules]))"
    )
    command = [sys.executable, "-c", code, str(leave_sweep(config, tmp_path).path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown, imported = done.stdout.splitlines()
    assert (shown, json.loads(imported)) == ("True", [])
