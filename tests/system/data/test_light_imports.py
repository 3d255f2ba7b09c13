"""Checking a config must not pay for torch: no module that holds a component may import it."""

import subprocess
import sys

BLOCKED = ("torch", "torchvision", "numpy", "ray", "mlflow")


def test_components_are_found_without_torch() -> None:
    code = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
from paceline.config.registry import components
for package in ("data", "models", "tasks", "optimizers", "lr_schedulers"):
    print(package, *components(f"paceline.{{package}}"))
from paceline.data.torchvision import SmallTorchvisionConfig
print(SmallTorchvisionConfig(name="CIFAR10").sizes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {"mnist5k", "synthetic", "image_folder", "CIFAR10", "Food101", "path"} <= set(found["data"])
    assert {"cnn", "mlp", "resnet18", "path"} <= set(found["models"])
    assert "Sizes(train=50000, validation=10000)" in done.stdout
