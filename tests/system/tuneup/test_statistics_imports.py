"""The statistics can be imported where there is nothing but numpy and scipy."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_statistics_need_no_torch(tmp_path: Path) -> None:
    for name in ("torch", "ray", "mlflow"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    code = "from paceline.tuneups.statistics.intervals import speedup; print(speedup([2.0] * 9, [1.0] * 9).estimate)"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "2.0", done.stderr
