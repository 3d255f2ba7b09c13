"""Tracking costs little to import, and never sees torch or ray."""

import json
import os
import pkgutil
import subprocess
import sys

import paceline.tracking

COUNT = """
import json, sys, time
import paceline
began = time.process_time()
for name in {names}:
    __import__(name)
seconds = time.process_time() - began
heavy = [name for name in ("mlflow", "matplotlib", "torch", "ray", "numpy") if name in sys.modules]
began = time.process_time()
import numpy
print(json.dumps([seconds, time.process_time() - began, heavy]))
"""


def test_importing_all_of_it_loads_nothing_heavy() -> None:
    names = [f"paceline.tracking.{module.name}" for module in pkgutil.iter_modules(paceline.tracking.__path__)]
    assert len(names) > 10
    code = COUNT.format(names=[*names, "paceline.doctor"])
    # the first compiles, as it does for a user; where nothing keeps that, each process pays 0.1 s for it anew
    keeping = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=keeping)
        seconds, of_numpy, heavy = json.loads(done.stdout)
        assert heavy == []
        taken.append(seconds / of_numpy)
    assert min(taken) < 4  # numpy takes about as long
