"""Figures while other threads of the process import."""

import os
import subprocess
import sys
from pathlib import Path

IPYTHON = """
import sys
sys.modules["__main__"].importing.set()
sys.modules["__main__"].drawing.wait(60)
version_info, get_ipython = (9, 0, 0), print
"""
"""A package whose import ends once a figure is being drawn. matplotlib asks it for its version before."""
DRAW = """
import threading
from paceline.reports.figure import Picture
importing, drawing = threading.Event(), threading.Event()
threading.Thread(target=__import__, args=["IPython"]).start()
importing.wait(60)
threading.Timer(0.2, drawing.set).start()
print(Picture(1, 1).png()[:4])
"""


def test_a_figure_is_drawn_while_another_thread_imports_ipython(tmp_path: Path) -> None:
    (tmp_path / "IPython.py").write_text(IPYTHON)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", DRAW], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [r"b'\x89PNG'"], done.stderr
