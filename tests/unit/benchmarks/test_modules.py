"""The programs that benchmarks start."""

import re
from importlib.util import find_spec
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "jobs" / "benchmarks"


def test_each_module_that_a_benchmark_starts_can_be_run() -> None:
    texts = [file.read_text() for file in BENCHMARKS.glob("*.py")]
    named = {name for text in texts for name in re.findall(r'"-m", "([\w.]+)"', text)}
    assert named
    assert [name for name in named if find_spec(f"{name}.__main__") is None] == []
