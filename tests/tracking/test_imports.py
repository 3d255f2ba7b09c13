"""Tracking costs nothing to import, and never sees torch or ray."""

import json
import pkgutil
import subprocess
import sys

import paceline.tracking

COUNT = """
import json, sys, time
import paceline
began = time.perf_counter()
for name in {names}:
    __import__(name)
seconds = time.perf_counter() - began
heavy = ("mlflow", "matplotlib", "torch", "ray", "numpy")
print(json.dumps([seconds, [name for name in heavy if name in sys.modules]]))
"""


def test_importing_all_of_it_loads_nothing_heavy() -> None:
    names = [f"paceline.tracking.{module.name}" for module in pkgutil.iter_modules(paceline.tracking.__path__)]
    assert len(names) > 10
    code = COUNT.format(names=[*names, "paceline.doctor"])
    measured = [
        json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert measured[0][1] == []
    assert min(seconds for seconds, _ in measured) < 0.2  # about 0.06 on an idle machine
