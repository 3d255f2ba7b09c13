"""A model is registered with the environment's credentials, and neither the page's address nor an error shows them."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from paceline.errors import EnvironmentFault
from paceline.tracking.points import Point
from paceline.tracking.recorder import Recorder
from paceline.tracking.registry import Version, register
from support.tracking.recording import MakeRecord

PASSWORD = "so/me <pass>word"
ALLOWED = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()


class Guarded(BaseHTTPRequestHandler):
    """Answers as an MLflow server that wants a password; it knows no run, and says so with the password in it."""

    def do_GET(self) -> None:
        is_allowed = self.headers.get("Authorization") == ALLOWED
        told = {"error_code": "INVALID_PARAMETER_VALUE", "message": f"not with {PASSWORD}"}
        body = b"OK" if self.path == "/health" else json.dumps(told).encode()
        self.send_response(401 if not is_allowed else 200 if self.path == "/health" else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def guarded() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def registered(tracking: Path, uri: str | None = None, name: str = "digits") -> Version:
    files = tracking.parent / "files"
    files.mkdir(parents=True, exist_ok=True)
    (files / "model.safetensors").write_bytes(b"weights")
    return register(name, files, "exported/a", tracking, "abc", 3, uri)


def test_the_credentials_are_those_of_the_environment(
    guarded: str, record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://me:{quote(PASSWORD, safe='')}@{guarded}"
    record(uri).save(tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        registered(tmp_path)
    assert caught.value.code == "credentials-refused"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(EnvironmentFault) as caught:
        registered(tmp_path)
    assert caught.value.code == "model-not-registered"
    assert caught.value.fields == {"uri": f"http://***@{guarded}"}
    assert "INVALID_PARAMETER_VALUE" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    with pytest.raises(EnvironmentFault) as caught:
        registered(tmp_path / "nowhere")
    assert caught.value.code == "no-record"


def test_the_page_is_one_that_opens(server_uri: str, record: MakeRecord, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "tracking", record(server_uri))
    recorder.append([Point("train/loss", 1.0, 1, 1)])
    assert recorder.close("FINISHED").error is None
    with_password = server_uri.replace("://", f"://me:{quote(PASSWORD, safe='')}@")
    version = registered(tmp_path / "tracking", with_password, "my digits #1?")
    assert version.url == f"{server_uri}/#/models/my%20digits%20%231%3F/versions/1"
