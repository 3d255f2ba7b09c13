"""A one-node Ray cluster whose Python lacks this package, as nodes do: what jobs are submitted to in tests."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent

HIDE_PACKAGE = """
import sys
sys.path[:] = [entry for entry in sys.path if not entry.endswith("platform")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "").lower()]
"""
"""A node's Python has the dependencies, but not the editable install of this checkout."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def job_cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A one-node cluster: its dashboard's address, and the environment for its clients."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE_PACKAGE)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "PYTHONPATH": str(tmp_path / "hide"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_worker_niceness": "0",  # or a busy machine leaves its workers nothing
        "HOME": str(tmp_path),
    }
    port, dashboard = free_port(), free_port()
    environment["GCS"] = f"127.0.0.1:{port}"
    command = [BIN / "ray", "start", "--head", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
    command += ["--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", "--block"]
    with (tmp_path / "node.log").open("w") as log:
        node = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path)
    try:
        wait_until(lambda: _answers(dashboard), 90)
        yield f"http://127.0.0.1:{dashboard}", environment
    finally:
        os.killpg(node.pid, 15)
        node.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
