"""A tune-up's run in MLflow: its note shows the pictures, and what does not answer is not waited for."""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

from paceline.study.tuneup.folder import TuneupFolder
from paceline.study.tuneup.pictures import PICTURES, SPLIT
from paceline.study.tuneup.recording import note_of, record_of, tell_mlflow
from paceline.tracking.metrics import NOTE
from support.toys import toy_config

from .found import findings


def test_the_note_shows_the_pictures_that_are_among_the_artifacts(prepared_database: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    found = replace(findings(), split={}, recommended_split={})
    report = tell_mlflow(TuneupFolder(tmp_path / "id"), record_of(toy_config(), "id", uri), found, 120.0)
    assert (report.unsent, report.error) == (0, None)
    client = MlflowClient(uri)
    note = client.get_run(str(report.run_id)).data.tags[NOTE]
    drawn = set(PICTURES) - {SPLIT}
    assert {name for name in PICTURES if f"](get-artifact?path={name}&run_uuid={report.run_id})" in note} == drawn
    assert {item.path for item in client.list_artifacts(str(report.run_id))} >= drawn
    assert SPLIT not in note


def test_an_mlflow_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        report = tell_mlflow(TuneupFolder(tmp_path / "id"), record_of(toy_config(), "id", uri), findings(), 300.0)
        assert time.monotonic() - begun < 100
    assert report.run_id is None
    assert report.error
    assert report.unsent > 0


def test_without_pictures_the_note_names_none() -> None:
    found = findings()
    bare = replace(found, arms=found.arms[-1:], speedup=None, split={}, recommended_split={}, beside=())
    assert "Pictures" not in note_of("toy", bare, "id")
    assert "Pictures" in note_of("toy", found)
    assert "get-artifact" not in note_of("toy", found)
