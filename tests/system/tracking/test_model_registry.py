"""A model is registered with the environment's credentials, and neither the page's address nor an error shows them."""

import base64
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest

from paceline.errors import EnvironmentFault
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.model_registry import Version, register
from paceline.tracking.run_recorder import RunRecorder
from support.tracking.answering import answering
from support.tracking.recording import MakeRecord

PASSWORD = "so/me <pass>word"
ALLOWED = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()


def guarded(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
    """As an MLflow server that wants a password; it knows no run, and says so with the password in it."""
    if request.headers.get("Authorization") != ALLOWED:
        return 401, b""
    if request.path == "/health":
        return 200, b"OK"
    return 400, json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": f"not with {PASSWORD}"}).encode()


def registered(tracking: Path, uri: str | None = None, name: str = "digits") -> Version:
    files = tracking.parent / "files"
    files.mkdir(parents=True, exist_ok=True)
    (files / "model.safetensors").write_bytes(b"weights")
    return register(name, files, "exported/a", tracking, "abc", 3, uri)


def fault_of(tracking: Path) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        registered(tracking)
    return caught.value


def test_the_credentials_are_those_of_the_environment(
    record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(guarded) as address:
        uri = address.replace("://", f"://me:{quote(PASSWORD, safe='')}@")
        record(uri).save(tmp_path)
        assert fault_of(tmp_path).code == "credentials-refused"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        fault = fault_of(tmp_path)
    assert fault.code == "model-not-registered"
    assert fault.fields == {"uri": address.replace("://", "://***@")}
    assert "INVALID_PARAMETER_VALUE" in str(fault)
    assert PASSWORD not in str(fault)
    assert fault_of(tmp_path / "nowhere").code == "no-record"


def test_the_page_is_one_that_opens(server_uri: str, record: MakeRecord, tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path / "tracking", record(server_uri))
    recorder.append([MetricPoint("train/loss", 1.0, 1, 1)])
    assert recorder.close("FINISHED").error is None
    with_password = server_uri.replace("://", f"://me:{quote(PASSWORD, safe='')}@")
    version = registered(tmp_path / "tracking", with_password, "my digits #1?")
    assert version.url == f"{server_uri}/#/models/my%20digits%20%231%3F/versions/1"
