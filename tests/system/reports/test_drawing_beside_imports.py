"""Figures while other threads of the process import."""

import os
import subprocess
import sys
from pathlib import Path

IPYTHON = "import time; print('importing', flush=True); time.sleep(3); version_info = (9, 0, 0); get_ipython = print"
"""A package that takes a while to import. matplotlib asks it for its version as soon as the import has begun."""
DRAW = """
import sys, threading, time
from paceline.reports.figure import Picture
thread = threading.Thread(target=__import__, args=["IPython"])
thread.start()
while "IPython" not in sys.modules:
    time.sleep(0.01)
print(Picture(1, 1).png()[:4])
"""


def test_a_figure_is_drawn_while_another_thread_imports_ipython(tmp_path: Path) -> None:
    (tmp_path / "IPython.py").write_text(IPYTHON)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", DRAW], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["importing", r"b'\x89PNG'"], done.stderr
