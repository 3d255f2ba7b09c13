"""Runs of this room's unit tests are recorded in their journals alone: nothing is sent to MLflow, git is not asked."""

from types import SimpleNamespace

import pytest

from paceline.tracking import recorder
from paceline.tracking.recorder import Recorder
from paceline.tracking.shipping import Shipper


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    monkeypatch.setattr(Shipper, "finish", lambda self, timeout_seconds: self.report())
    silence = {True: "MLflow does not answer", False: None}
    monkeypatch.setattr(recorder, "silence_of", lambda uri, seconds: silence[uri.startswith("http")])
    unknown = SimpleNamespace(tags={}, artifacts={})
    monkeypatch.setattr("paceline.cluster.experiment.provenance", lambda *given, **named: unknown)
