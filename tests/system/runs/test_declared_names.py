"""Whatever a run records has a name that `tracking.metrics` declares; tests/system/sweeps looks at that of a sweep."""

import json
import shutil
from pathlib import Path

import pytest

from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.record import RECORD_FILE
from support.runs.declared_names import undeclared, written
from support.runs.trained_runs import CNN, trained


def test_a_run(tmp_path: Path, prepared_database: Path) -> None:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    trained(tmp_path, "named", **CNN)
    keys = {key for _, key in written(tmp_path)}
    assert {metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.COMMAND, metrics.NOTE, metrics.SPEED_STAMP} <= keys
    assert {"cost/core_seconds", "system/cpu_utilization_percentage"} <= keys
    assert undeclared(tmp_path) == set()


@pytest.mark.parametrize(("kind", "key"), [("tag", "paceline.new"), ("metric", "speed")])
def test_an_undeclared_name_is_seen(tmp_path: Path, kind: str, key: str) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"tags": {}}))
    point = {"key": key, "value": 1.0, "step": 1, "timestamp_ms": 1}
    entry = ("point", point) if kind == "metric" else ("tags", {"tags": {key: "x"}})
    Journal(tmp_path / JOURNAL_FILE).append([entry])
    assert undeclared(tmp_path) == {(kind, key)}
