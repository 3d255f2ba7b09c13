"""A process of its own that ends without an answer: the error tells how."""

import signal
from pathlib import Path

import pytest

from paceline.cluster.separate_process import SeparateProcess
from paceline.config.experiment import validate
from paceline.errors import EnvironmentFault
from support.refusals import refused


@pytest.mark.parametrize(
    ("ending", "exit_code", "told"),
    [
        (f"os.kill(os.getpid(), {signal.SIGKILL:d})", -9, "out of memory"),
        (f"os.kill(os.getpid(), {signal.SIGABRT:d})", -6, "SIGABRT"),
        ("os._exit(3)", 3, "code 3"),
    ],
    ids=["killed", "aborted", "left"],
)
def test_a_process_that_dies_is_reported_with_its_end(ending: str, exit_code: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "dies_at_once.py").write_text(f"import os, sys\nsys.stdin.buffer.read()\n{ending}\n")
    config = validate({"name": "run", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}})
    process = SeparateProcess("dies_at_once", config, None, {"PYTHONPATH": str(tmp_path)})
    fault = refused(EnvironmentFault, process.answer, 60)
    assert (fault.code, fault.fields["exit_code"]) == ("process-died", exit_code)
    assert told in fault.message
    assert ("memory" in fault.message) == (exit_code == -9)
