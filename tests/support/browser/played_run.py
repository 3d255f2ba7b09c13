"""Runs that tell of themselves what would be markup, if a page took it for that."""

import time
from pathlib import Path

from paceline.cluster.unfinished_runs import claim_run
from paceline.config.experiment import validate
from paceline.config.loading import dump_yaml
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_views import run_views
from paceline.tracking.run_record import RunRecord, flatten
from paceline.tracking.run_recorder import RunRecorder

BEGAN_MS = int(time.time() * 1000)


def hostile(where: str) -> str:
    """Text that opens a dialog, and makes an element, where it is taken for HTML.

    Args:
        where: is told by the dialog and by the element.
    """
    return f"<script>alert('{where}')</script><img src=x class=hostile title={where} onerror=alert('{where}')>"


def play_hostile_run(storage: Path, uri: str) -> tuple[Path, str]:
    """A run that failed, recorded in MLflow, with markup in its name, params, metrics, tags, note and a text file.

    Returns its folder, and MLflow's id of it.
    """
    config = validate({"name": "hostile", "model": {"name": "mlp"}, "data": {"name": "synthetic"}})
    claimed = claim_run(config, storage, "new")
    folder = claimed.folder
    params = {**flatten(config.model_dump(mode="json")), "model.path": hostile("param")}
    record = RunRecord(
        folder.run_id, hostile("name"), uri, "browsed", params, {"paceline.command": hostile("command")},
        {"config.yaml": dump_yaml(config), "words.md": hostile("file")}, BEGAN_MS, views=run_views(),
    )  # fmt: skip
    recorder = RunRecorder(folder.tracking, record)
    curves = {"train/loss": -1, hostile("metric"): -1, "val/loss": -1, "epoch": 1, "validation_epoch": 1}
    points = [(key, step**power, step) for step in range(1, 11) for key, power in curves.items()]
    recorder.append(
        [MetricPoint(*each, BEGAN_MS) for each in [*points, (metrics.SAMPLES_PER_SECOND_OVERALL, 1234.0, 10)]]
    )
    report = recorder.close("FAILED", f"ValueError: {hostile('reason')}")
    assert (report.unsent, report.error) == (0, None)
    folder.write(status="failed")
    claimed.release()
    return folder.path, str(report.run_id)
