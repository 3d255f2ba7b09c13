"""Fixtures of sweeps that are simulated: without Ray, and without an MLflow that answers, or with a pretended one.

The conftest of a folder of such tests imports them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.coordinator import sweep_recorder
from paceline.tracking import mlflow_uploader, upload_threads
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import UploadReport
from support.sweeps.simulation import SimulatedSweep


@pytest.fixture(scope="module", autouse=True)
def mlflow_does_not_answer() -> Iterator[None]:
    """It is not even imported, which a thread would do beside the next tests: what is tested does not wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_uploader.MlflowUploader, "_open", _refuse)
        yield


def _refuse(self: Any) -> None:
    raise ConnectionError("MLflow does not answer")


@pytest.fixture
def new_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimulatedSweep]:
    """Makes a simulated sweep in the folder `sweep`; called again, a later launch of it."""
    monkeypatch.setattr(sweep_recorder, "CHILD_CLOSE_SECONDS", 0.05)
    return lambda **given: SimulatedSweep(tmp_path / "sweep", **given)


def pretend_mlflow(monkeypatch: pytest.MonkeyPatch, finish: Callable[[], UploadReport]) -> None:
    """Have MLflow answer, and report what `finish` returns of each record that is over; nothing is sent anywhere."""
    monkeypatch.setattr(RunRecorder, "_silence", lambda recorder: None)
    monkeypatch.setattr(upload_threads, "silence_of", lambda *_: None)
    monkeypatch.setattr(mlflow_uploader.MlflowUploader, "start", lambda uploader: None)
    for method in ("finish", "finish_patiently"):
        monkeypatch.setattr(mlflow_uploader.MlflowUploader, method, lambda uploader, seconds: finish())
