"""The watcher on spot instances: it tells Ray of the notice, with the time that is left, and of nothing else."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "configs" / "deploy" / "watch_spot.py"
RAY = """#!{python}
import json, os, sys
with open({told!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


class Metadata:
    """AWS's metadata service: asks for a token, and has a notice once `end` is set."""

    def __init__(self) -> None:
        self.end: datetime | None = None
        self.asked = threading.Semaphore(0)
        """Released at each request for a notice."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._answer(200, b"the-token")

            def do_GET(self) -> None:
                service.asked.release()
                if self.headers["X-aws-ec2-metadata-token"] != "the-token":
                    self._answer(401, b"")
                elif self.path != "/latest/meta-data/spot/instance-action" or service.end is None:
                    self._answer(404, b"not found")
                else:
                    action = {"action": "terminate", "time": service.end.strftime("%Y-%m-%dT%H:%M:%SZ")}
                    self._answer(200, json.dumps(action).encode())

            def _answer(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *given: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    thread = threading.Thread(target=service.server.serve_forever)
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()


def test_ray_is_reported_of_the_notice_and_of_the_time_that_is_left(metadata: Metadata, tmp_path: Path) -> None:
    told = tmp_path / "told"
    (tmp_path / "ray").write_text(RAY.format(python=sys.executable, told=str(told)))
    (tmp_path / "ray").chmod(0o755)
    quick = "import runpy, sys, time; sleep = time.sleep; time.sleep = lambda _: sleep(0.05)\n"
    quick += f"sys.argv = ['watch', '10.0.0.1:6379']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    own = {**os.environ, "SPOT_METADATA": metadata.uri, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    watcher = subprocess.Popen([sys.executable, "-c", quick], env=own)
    try:
        for _ in range(5):
            assert metadata.asked.acquire(timeout=60)
        assert not told.exists()
        metadata.end = datetime.now(UTC) + timedelta(seconds=120)
        assert watcher.wait(60) == 0
    finally:
        watcher.kill()
        watcher.wait()
    (command,) = map(json.loads, told.read_text().splitlines())
    assert command[:3] == ["drain-node", "--address=10.0.0.1:6379", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    left = int(command[-1].removeprefix("--deadline-remaining-seconds="))
    assert 45 < left <= 110
