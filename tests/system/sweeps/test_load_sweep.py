"""A sweep that is opened in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from support.sweeps.configs import sweep_config
from support.sweeps.finished import leave_sweep


def test_opening_a_sweep_imports_neither_ray_nor_torch_nor_mlflow(tmp_path: Path) -> None:
    folder = leave_sweep(sweep_config(metric="val/accuracy"), tmp_path)
    code = (
        "import json, sys; from paceline import load_sweep; print(len(repr(load_sweep(sys.argv[1]))) > 0);"
        "print(json.dumps([name for name in ('ray', 'torch', 'mlflow') if name in sys.modules]))"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown, imported = done.stdout.splitlines()
    assert (shown, json.loads(imported)) == ("True", [])
