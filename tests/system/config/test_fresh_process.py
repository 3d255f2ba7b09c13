"""Loading a config in a fresh process: no heavy import, any module first, and in a fraction of the time of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = """\
name: run
model: {path: 'own_nets:build'}
data: {path: 'own_nets:data'}
task: {name: classification, label_smoothing: 0.1}
optimizer: {name: adamw, lr: 1e-3, eps: 1e-8, lr_scaling: sqrt}
lr_scheduler: {name: cosine, warmup_epochs: 1}
trainer: {epochs: 5, precision: bf16-mixed, max_grad_norm: 1.0}
scaling: {num_workers: 2, use_gpu: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_nets.py").write_text("def build(width=8, **others): ...\ndef data(): ...\n")
    (tmp_path / "run.yaml").write_text(FULL)
    return tmp_path


def run_python(code: str, folder: Path) -> None:
    """Run code in a fresh interpreter in which torch, torchvision, Ray and MLflow cannot be imported."""
    block = "import sys\nfor name in ('torch', 'torchvision', 'ray', 'mlflow'): sys.modules[name] = None\n"
    command = [sys.executable, "-c", block + code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_torch_ray_and_mlflow_are_never_imported(folder: Path) -> None:
    code = """
import paceline
config = paceline.load_config("run.yaml", ["trainer.epochs=2", "model={name: resnet18}", "data={name: CIFAR10}"])
config.with_overrides({"optimizer.name": "sgd", "optimizer.lr": 0.1})
from paceline.config.derived import derive
from paceline.config.schema import json_schema
derive(config, config.data.sizes()).lines()
json_schema()
"""
    run_python(code, folder)


@pytest.mark.parametrize("module", ["data.base", "optimizers.base", "config.base"])
def test_any_module_of_the_config_can_be_imported_first(module: str, folder: Path) -> None:
    run_python(f"import paceline.{module}, paceline; paceline.ExperimentConfig", folder)


def test_a_fresh_process_loads_a_config_in_a_fraction_of_an_import_of_torch(folder: Path) -> None:
    def seconds(code: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    loading = min(seconds("import paceline; paceline.load_config('run.yaml')") for _ in range(2))
    assert loading < 0.5 * seconds("import torch")
