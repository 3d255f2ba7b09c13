"""What a sweep or a tune-up leaves in its folder finds the user's code again, from wherever it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.config.imports import CODE_FILE, remember_folders, remembered_folders

USE = "import sys; from paceline import load_config; load_config(sys.argv[1])"
CONFIG = "name: own\nmodel: {path: 'own_net:build'}\ndata: {name: mnist5k, global_batch_size: 8}\n"


def test_a_config_in_a_runs_folder_finds_the_code_that_the_run_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, run, elsewhere = (tmp_path / name for name in ("code", "run", "elsewhere"))
    for folder in (code, run, elsewhere):
        folder.mkdir()
    (code / "own_net.py").write_text("def build(): ...\n")
    (run / "best.yaml").write_text(CONFIG)
    command = [sys.executable, "-c", USE, str(run / "best.yaml")]
    refused = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
    assert "no module named 'own_net'" in refused.stderr
    monkeypatch.syspath_prepend(str(code))
    remember_folders(run)
    subprocess.run(command, cwd=elsewhere, check=True)


def test_files_beside_a_config_do_not_take_the_place_of_libraries(tmp_path: Path) -> None:
    """Neither in the command nor in the process that it starts, and the user's own module is still found."""
    for library in ("numpy", "ray", "rich", "torch"):
        (tmp_path / f"{library}.py").write_text(f"raise SystemExit('the {library} of the folder was imported')\n")
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    (tmp_path / "own.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "paceline", "plan", "own.yaml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == 784 * 10 + 10


@pytest.mark.parametrize("content", ["", "[]", '{"import_folders": 5}', '{"import_folders": ["/is/not/there"]}'])
def test_a_damaged_file_remembers_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / CODE_FILE).write_text(content)
    assert remembered_folders(tmp_path) == []
    assert remembered_folders(tmp_path / "missing") == []
