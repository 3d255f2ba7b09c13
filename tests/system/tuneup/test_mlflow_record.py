"""A tune-up's run in MLflow."""

import re
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

from paceline.bench.mlflow_record import record_of
from paceline.tracking.metrics import NOTE
from paceline.tuneups.folder import TUNEUP, TuneupFolder
from paceline.tuneups.mlflow_record import figures, record_in_mlflow
from paceline.tuneups.pictures import PICTURES, SPLIT
from support.toys import toy_config
from support.tuneup.findings import findings

TIMEOUT_SECONDS = 300.0


def test_the_run_has_the_note_and_the_files(prepared_database: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    found = replace(findings(), split={}, recommended_split={})
    report = record_in_mlflow(
        TuneupFolder(tmp_path / "id"), record_of(toy_config(), TUNEUP, "id", uri), found, TIMEOUT_SECONDS
    )
    assert (report.unsent, report.error) == (0, None)
    client = MlflowClient(uri)
    run = client.get_run(str(report.run_id))
    shown = re.findall(rf"\]\(get-artifact\?path=([\w.]+)&run_uuid={report.run_id}\)", run.data.tags[NOTE])
    assert set(shown) == set(PICTURES) - {SPLIT}
    assert {item.path for item in client.list_artifacts(str(report.run_id))} >= {*shown, "findings.json"}
    assert run.data.metrics["tuneup/speedup/cache"] == 2.74


def test_an_mlflow_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        record = record_of(toy_config(), TUNEUP, "id", f"http://127.0.0.1:{taken.getsockname()[1]}")
        began = time.monotonic()
        report = record_in_mlflow(TuneupFolder(tmp_path / "id"), record, findings(), TIMEOUT_SECONDS)
        assert time.monotonic() - began < TIMEOUT_SECONDS / 3
    assert report.run_id is None
    assert report.error
    assert report.unsent > 0


def test_mlflow_takes_the_speed_of_each_name_that_the_config_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    technique = replace(findings().techniques[0], name="bf16 + compile=default")
    for key in figures(replace(findings(), techniques=(technique,))):
        _validate_metric_name(key)
