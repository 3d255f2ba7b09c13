"""Records of runs and sweeps as killed processes leave them behind, and what MLflow has of them."""

import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cluster.run_folder import RunFolder
from paceline.config.experiment import validate
from paceline.runs.sync import SyncReport
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics, mlflow_connection
from paceline.tracking.costs import COST_FILE, Ledger
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord, sweep_tags, trial_tags
from paceline.tracking.run_recorder import RunRecorder

OLDER, NEWER = "20260101-000000-aaaaaa", "20260102-000000-bbbbbb"
STEPS = [1, 2, 3, 4, 5]
STATES = {"0000": "finished", "0001": "failed", "0002": "pruned", "0003": "running", "0004": "paused"}


def taken(count: int = 5) -> list[MetricPoint]:
    """Points of so many steps."""
    now = int(time.time() * 1000)
    return [MetricPoint("train/loss", 1.0 / step, step, now + step) for step in range(1, count + 1)]


def record(tracking: Path, uri: str, **about: Any) -> RunRecorder:
    """Open a record and write five points, of which nothing is sent."""
    given = {"run_id": tracking.parent.name, "name": "mnist", "uri": uri, "experiment": "mnist", **about}
    recorder = RunRecorder(tracking, RunRecord(**given))
    recorder.append(taken())
    return recorder


def run_folder(storage: Path, run_id: str = NEWER, status: str = "running") -> RunFolder:
    """A run's folder with its status file."""
    folder = RunFolder(storage / "mnist" / run_id)
    folder.write(status=status, config={"name": "mnist"})
    return folder


def killed_run(storage: Path, uri: str, run_id: str = NEWER, status: str = "running") -> Path:
    """A run whose process was killed."""
    folder = run_folder(storage, run_id, status)
    record(folder.tracking, uri).abandon()
    return folder.path


def ended_run(storage: Path, uri: str) -> Path:
    """A run that has ended, and sent nothing."""
    folder = run_folder(storage, status="finished")
    recorder = record(folder.tracking, uri, picture=False)
    recorder.conclude("FINISHED")
    recorder.abandon()
    return folder.path


def killed_sweep(storage: Path, uri: str) -> Path:
    """A sweep whose driver was killed: its trials have ended in its journal, but their records are open."""
    folder = SweepFolder(storage / "mnist" / NEWER)
    space = {"space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}, "metric": "val/accuracy"}
    config = {"name": "mnist", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, "sweep": space}
    folder.write(status="running", config=validate(config).model_dump(mode="json"))
    record(folder.tracking, uri, tags=sweep_tags(NEWER), picture=False).abandon()
    log = SweepLog(folder.path)
    for trial_id, state in STATES.items():
        reason = "" if state in ("finished", "running", "paused") else f"it was {state}"
        values = {"optimizer.lr": 0.1 * (1 + int(trial_id))}
        log.append([trial_entry(Trial(trial_id, values, state, reason, {"val/accuracy": 0.5}))])  # type: ignore[arg-type]
        tags, about = trial_tags(NEWER, trial_id), f"{NEWER}/{trial_id}"
        tracking = folder.trials / trial_id / "tracking"
        record(tracking, uri, run_id=about, parent=NEWER, tags=tags, picture=False).abandon()
    log.close()
    return folder.path


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """As a driver leaves it that is killed."""
    (folder / "tracking" / COST_FILE).write_text(json.dumps(ledger.to_json()))


def uri_of(database: Path) -> str:
    """The address of a database."""
    return f"sqlite:///{database}"


def mlflow_runs(uri: str) -> dict[str, Any]:
    """The runs of the experiment that are not deleted, by Paceline's id."""
    client = mlflow_connection.connect(uri)
    experiment = client.get_experiment_by_name("mnist")
    runs = client.search_runs([experiment.experiment_id]) if experiment is not None else []
    found = {run.data.tags[metrics.RUN_ID]: run for run in runs}
    assert len(found) == len(runs), "a run is there twice"
    return found


def steps_of(uri: str, run: Any) -> list[int]:
    """The steps of the points of a run."""
    return [point.step for point in mlflow_connection.connect(uri).get_metric_history(run.info.run_id, "train/loss")]


def cost_of(run: Any) -> dict[str, float]:
    """The metrics of a run that are its cost."""
    return {key: value for key, value in run.data.metrics.items() if key.startswith("cost/")}


def contents(database: Path, storage: Path) -> tuple[list[str], dict[str, bytes]]:
    """All that a database and a storage hold."""
    with sqlite3.connect(database) as opened:
        dump = list(opened.iterdump())
    opened.close()
    return dump, files(storage)


def files(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def states(report: SyncReport) -> dict[str, str]:
    """By the name of its folder, what became of a record."""
    return {Path(each.folder).name: each.state for each in report.records}


def without_sent(report: SyncReport) -> SyncReport:
    """The same report, with nothing sent."""
    return SyncReport(tuple(replace(each, sent=0) for each in report.records))
