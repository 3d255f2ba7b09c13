"""Fixtures with which runs are recorded in their journals alone: nothing is sent to MLflow, git is not asked.

The conftest of a folder of tests that train in their own process imports them.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.tracking import run_recorder
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder
from support.cluster.local_runs import enter_folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, whose `runs` is the storage."""
    return enter_folder(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunRecorder, "start_uploading", lambda self: None)
    monkeypatch.setattr(MlflowUploader, "finish", lambda self, timeout_seconds: self.report())
    silence = {True: "MLflow does not answer", False: None}
    monkeypatch.setattr(run_recorder, "silence_of", lambda uri, seconds: silence[uri.startswith("http")])
    unknown = SimpleNamespace(tags={}, artifacts={})
    monkeypatch.setattr("paceline.cluster.train.provenance", lambda *given, **named: unknown)
