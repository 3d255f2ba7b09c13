"""`paceline ui` beside runs of another store."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.cli import run as command
from support.runs.records import killed_run

THERE = "http://127.0.0.1:5999"


class Healthy(BaseHTTPRequestHandler):
    """Answers as an MLflow server that is healthy and has nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"OK" if self.path == "/health" else b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def healthy_uri() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_runs_of_another_store_are_reported(
    tmp_path: Path, healthy_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    killed_run(tmp_path / "runs", THERE)
    assert command(["ui", "--uri", healthy_uri]) == 0
    assert THERE in capsys.readouterr().out
