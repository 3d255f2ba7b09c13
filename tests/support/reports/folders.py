"""Folders of runs and sweeps as they are left behind, and the pages of their reports."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.unfinished_runs import claim_run
from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.config.loading import dump_yaml
from paceline.runs.finding import FoundRun
from paceline.runs.report.report import report_of
from paceline.sweeps.results.record import best_config
from paceline.sweeps.sweep_folder import claim_sweep
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord, sweep_tags, trial_tags
from paceline.tracking.run_recorder import FinalStatus, RunRecorder
from paceline.tracking.upload_cursor import UploadCursor
from support.reports.page import Node, page_from

STAMP = {
    "device": "cpu",
    "device_type": "cpu",
    "nodes": 1,
    "workers": 1,
    "gpus": 0,
    "threads_per_worker": 2,
    "usable_cores": 2,
    "cpu": "some",
    "torch": "2",
    "measured_steps": 50,
    "warm_up_steps": 5,
    "other_load_start": 0.01,
    "other_load_end": 0.0,
}
"""What a speed was measured on."""
BEGAN_MS = 1_760_000_000_000
URI = "http://mlflow.example:5000"
MLFLOW_ID = "0123456789abcdef0123456789abcdef"


def config(name: str = "compare", sweep: Mapping[str, Any] | None = None, **sections: Any) -> ExperimentConfig:
    """A small experiment; a sweep of two axes by default."""
    space = {"optimizer.lr": [0.1, 0.2, 0.4], "data.global_batch_size": [32, 64]}
    section = sweep or {"space": space, "metric": "val/accuracy", "seeds": 2}
    data = {"name": "synthetic", "global_batch_size": 64}
    return validate({"name": name, "model": {"name": "mlp"}, "data": data, "sweep": section, **sections})


def stamped(**changes: Any) -> dict[str, str]:
    """The tag of a speed, with changes of its stamp."""
    return {metrics.SPEED_STAMP: json.dumps({**STAMP, **changes})}


def trial(number: int, accuracy: float | None, state: str = "finished", reason: str = "", **params: Any) -> Trial:
    """A trial as the sweep's journal has it in the end."""
    metrics = {} if accuracy is None else {"val/accuracy": accuracy, "val/loss": 1 - accuracy}
    given: Any = state
    return Trial(
        f"{number:04d}", params, given, reason, metrics, steps=100, total_steps=100, samples=6400,
        samples_per_second=1000.0 + number, peak_memory_bytes=300 * 2**20, seconds=6.4, attempts=1,
    )  # fmt: skip


def some_trials() -> list[Trial]:
    """Three learning rates, two batch sizes, two seeds; two of the trials did not finish."""
    found = []
    for number in range(12):
        lr, batch, seed = [0.1, 0.2, 0.4][number // 4], [32, 64][number // 2 % 2], number % 2
        where = {"optimizer.lr": lr, "data.global_batch_size": batch, "seed": seed}
        accuracy = 0.9 - abs(lr - 0.2) - batch / 1000 + seed / 1000
        found.append(trial(number, accuracy, **where))
    found[10] = trial(10, 0.3, "pruned", "asha: 0.3 is not among the best third", **found[10].params)
    found[11] = trial(11, None, "oom", "CUDA out of memory", **found[11].params)
    return found


def curve(value: float, steps: Sequence[int] = range(10, 101, 10), key: str = "train/loss") -> list[MetricPoint]:
    """A metric that falls towards a value."""
    return [MetricPoint(key, value + math.exp(-step / 30), step, BEGAN_MS + step) for step in steps]


def recorded(
    folder: Path,
    points: Sequence[MetricPoint],
    name: str = "compare",
    run_id: str = "r1",
    status: FinalStatus | None = "FINISHED",
    reason: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    artifacts: Mapping[str, str] | None = None,
    later: Mapping[str, str] | None = None,
    uri: str = URI,
) -> None:
    """A tracking folder, by the recorder itself; `later` are tags that are set while it runs."""
    record = RunRecord(
        run_id, name, uri, "compare", params or {}, tags or {}, artifacts or {}, BEGAN_MS, picture=False
    )  # fmt: skip
    recorder = RunRecorder(folder, record)
    recorder.append(points)
    recorder.set_tags(later or {})
    if status is not None:
        recorder.conclude(status, reason)
    recorder.abandon()
    UploadCursor(run_id=MLFLOW_ID, experiment_id="4").save(folder / "uploaded.json")


def made_sweep(
    storage: Path,
    trials: Sequence[Trial],
    *,
    own: ExperimentConfig | None = None,
    written: str = "finished",
    trial_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> FoundRun:
    """A sweep's folder; the options are those of `recorded`, for its own record and for those of its trials."""
    chosen = own or config()
    claimed = claim_sweep(chosen, storage, intent="new")
    folder = claimed.folder
    log = SweepLog(folder.path)
    for each in trials:
        log.append([trial_entry(each)])
        if each.attempts:
            points = [*curve(each.metrics.get("val/loss", 1.0)), *curve(0.5, (50, 100), "val/accuracy")]
            told = {"tags": trial_tags(folder.run_id, each.id), **(trial_options or {})}
            recorded(folder.trials / each.id / "tracking", points, run_id=f"t{each.id}", **told)
    log.close()
    assert chosen.sweep is not None
    if text := best_config(chosen, trials, chosen.sweep.objectives):
        folder.best_config.write_text(text)
    recorded(folder.tracking, [], **{"run_id": folder.run_id, "tags": sweep_tags(folder.run_id), **options})
    folder.write(status=written)
    claimed.release()
    return FoundRun("sweep", folder.path)


def made_run(storage: Path, points: Sequence[MetricPoint], written: str = "finished", **options: Any) -> FoundRun:
    """A run's folder; the options are those of `recorded`."""
    own = config(sweep={"space": {"optimizer.lr": [0.1]}}).with_overrides({"sweep": None})
    claimed = claim_run(own, storage, "new")
    text = {"config.yaml": dump_yaml(own)}
    recorded(claimed.folder.tracking, points, **{"run_id": claimed.folder.run_id, "artifacts": text, **options})
    claimed.folder.write(status=written)
    claimed.release()
    return FoundRun("run", claimed.folder.path)


def page_of(found: FoundRun) -> Node:
    """The report of a run, which is looked at for what no report may have."""
    page = page_from(report_of(found).decode())
    assert "could not be drawn" not in page.text
    return page
