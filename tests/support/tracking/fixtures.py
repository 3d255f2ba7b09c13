"""Fixtures of the tests of tracking: an environment without MLflow's variables, records, fresh databases, a proxy."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.tracking import backoff, mlflow_uploader
from paceline.tracking.run_record import RunRecord
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import MakeRecord


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials from outside, and short waits."""
    for variable in ("URI", "TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{variable}", raising=False)
    monkeypatch.setattr(mlflow_uploader, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _no_recorder_continues(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that leaves a recorder open, as a crash does, must not have it meddle with the tests that follow."""
    made: list[mlflow_uploader.MlflowUploader] = []
    make = mlflow_uploader.MlflowUploader.__init__
    monkeypatch.setattr(
        mlflow_uploader.MlflowUploader,
        "__init__",
        lambda self, *given, **named: (made.append(self), make(self, *given, **named))[1],
    )
    yield
    for each in made:
        each._abandoned.set()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> MakeRecord:
    """Make a record whose run id and experiment are the test's own."""

    def make(uri: str, **changes: object) -> RunRecord:
        name = re.sub(r"[^\w -]", "-", request.node.name)
        given = {"run_id": f"run-{name}", "name": "mnist-cnn", "uri": uri, "experiment": f"experiment {name}"}
        return RunRecord(**{**given, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def sqlite_uri(prepared_database: Path, tmp_path: Path) -> str:
    """A fresh database of the test's own."""
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    """A folder whose name means something else in an address."""
    folder = tmp_path / "50%41 c#d q?x 日本 ü"
    folder.mkdir()
    return folder


@pytest.fixture
def proxy(server_uri: str) -> Iterator[FaultyProxy]:
    """A proxy between a recorder and the real server, which fails on request."""
    with FaultyProxy(server_uri) as running:
        yield running
