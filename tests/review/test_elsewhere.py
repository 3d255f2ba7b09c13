"""`paceline ui` shows one store: newer runs of the folder that another one has are told."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.cli import run as command
from paceline.cluster.identity import RunFolder
from paceline.review.elsewhere import recorded_elsewhere
from paceline.tracking.record import RunRecord

HERE, THERE = "sqlite:////work/mlflow.db", "http://127.0.0.1:5999"


class Fine(BaseHTTPRequestHandler):
    """Answers as an MLflow server that is well, and tells nothing else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"OK" if self.path == "/health" else b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server_uri() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Fine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ran(storage: Path, number: int, uri: str) -> None:
    """A run that was started at such a time."""
    folder = RunFolder(storage / "digits" / f"20260101-00000{number}-abcdef")
    folder.write(status="finished", config={"name": "digits"})
    folder.tracking.mkdir(parents=True)
    RunRecord(folder.run_id, "digits", uri, "digits", start_time_ms=number).save(folder.tracking)


def test_newer_runs_of_another_store_are_told(tmp_path: Path) -> None:
    ran(tmp_path, 1, THERE)
    ran(tmp_path, 2, HERE)
    assert recorded_elsewhere(tmp_path, HERE) == []
    ran(tmp_path, 3, THERE)
    assert recorded_elsewhere(tmp_path, HERE) == [f"1 newer run of this folder is on {THERE}"]
    ran(tmp_path, 4, THERE)
    assert recorded_elsewhere(tmp_path, HERE) == [f"2 newer runs of this folder are on {THERE}"]
    assert recorded_elsewhere(tmp_path, THERE.replace("//", "//me:canary@") + "/") == []
    assert recorded_elsewhere(tmp_path, "http://other") == [
        f"3 runs of this folder are on {THERE}",
        f"1 run of this folder is on {HERE}",
    ]
    assert recorded_elsewhere(tmp_path / "nowhere", HERE) == []


def test_a_damaged_record_is_passed_over(tmp_path: Path) -> None:
    ran(tmp_path, 1, THERE)
    next(tmp_path.rglob("record.json")).write_text("{broken")
    assert recorded_elsewhere(tmp_path, HERE) == []


def test_the_command_tells_it(
    tmp_path: Path, server_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran(tmp_path / "runs", 1, THERE)
    assert command(["ui", "--uri", server_uri]) == 0
    assert f"1 run of this folder is on {THERE}\n" in capsys.readouterr().out
