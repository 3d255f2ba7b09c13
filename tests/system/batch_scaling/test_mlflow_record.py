"""A scale study's run in MLflow."""

import re
import shutil
from pathlib import Path

from paceline.batch_scaling.folder import SCALE, ScaleFolder
from paceline.batch_scaling.mlflow_record import record_in_mlflow
from paceline.batch_scaling.pictures import PICTURES
from paceline.bench.mlflow_record import record_of
from paceline.tracking import metrics
from support.batch_scaling.findings import findings
from support.toys import toy_config


def test_the_run_has_the_note_the_pictures_and_the_metrics(prepared_database: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    folder = ScaleFolder(tmp_path / "id")
    report = record_in_mlflow(folder, record_of(toy_config(), SCALE, "id", uri), findings(), 300.0)
    assert (report.unsent, report.error) == (0, None)
    client = MlflowClient(uri)
    run = client.get_run(str(report.run_id))
    shown = re.findall(rf"\]\(get-artifact\?path=([\w.]+)&run_uuid={report.run_id}\)", run.data.tags[metrics.NOTE])
    assert shown == list(PICTURES)
    assert {item.path for item in client.list_artifacts(str(report.run_id))} >= {*shown, "findings.json"}
    assert run.data.tags[metrics.KIND] == "scale"
    assert run.data.metrics[metrics.SCALE_SPEEDUP] == 2.2
    assert [point.step for point in client.get_metric_history(run.info.run_id, metrics.SCALE_NOISE)] == [1000, 2000]
