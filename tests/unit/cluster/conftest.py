"""Runs of this room's unit tests are recorded in their journals alone: nothing is sent to MLflow, git is not asked."""

from types import SimpleNamespace

import pytest

from paceline.tracking import run_recorder
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunRecorder, "start_uploading", lambda self: None)
    monkeypatch.setattr(MlflowUploader, "finish", lambda self, timeout_seconds: self.report())
    silence = {True: "MLflow does not answer", False: None}
    monkeypatch.setattr(run_recorder, "silence_of", lambda uri, seconds: silence[uri.startswith("http")])
    unknown = SimpleNamespace(tags={}, artifacts={})
    monkeypatch.setattr("paceline.cluster.train.provenance", lambda *given, **named: unknown)
