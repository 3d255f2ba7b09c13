"""A sweep's result from its folder, also of one that the command line has run."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.imports import with_absent_objects
from paceline.config.shareable import secrets_of
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.redaction import learn
from paceline.storage.address import LAUNCH, RunStore
from paceline.storage.in_progress import is_in_progress
from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import read_log
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.mlflow_views import review_url, sweep_view_id
from paceline.tracking.run_record import RunRecord
from paceline.tracking.tracking_uri import is_http, run_url
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor


@dataclass(frozen=True)
class _Launch:
    """The last launch by the sweep's own record."""

    seconds: float = 0.0
    over: str = ""
    """The reason why it ended before its last trial."""
    url: str | None = None
    run_id: str | None = None
    review_url: str | None = None
    needs_ui: bool = False


def sweep_in(folder: Path, store: RunStore | None = None) -> SweepResult:
    """The result of a sweep that has run before, or is running, as `sweep` returns it. Changes nothing.

    Args:
        folder: the sweep's own, `runs/<name>/<sweep_id>`.
        store: where the sweep is when that is an object store; the folder is a copy then.

    Raises:
        EnvironmentFault: there is no whole sweep in the folder.
        ConfigError: the sweep's config is none any more, such as that of another version of Paceline.
    """
    sweep = SweepFolder(folder.expanduser().absolute())
    content = sweep.read()
    if "config" not in content:
        message = f"there is no sweep in {sweep.path}: {SweepFolder.FILE} with its config is missing"
        raise EnvironmentFault(message, "no-sweep", path=sweep.path)
    config = _config(sweep, content["config"])
    is_running = content.get("status") == "running" and _is_at_work(sweep, store)
    launch = _last_launch(sweep.tracking, is_running)
    trials = [trial if is_running else _left(trial) for trial in read_log(sweep.path).trials.values()]
    return SweepResult(
        sweep_id=sweep.run_id,
        name=config.name,
        status="running" if is_running else _status(content.get("status"), launch.over),
        trials=tuple(trials),
        objectives=tuple(section_of(config).objectives),
        config=config,
        folder=sweep.path,
        best_config_path=str(sweep.best_config) if sweep.best_config.exists() else "",
        wall_seconds=launch.seconds,
        mlflow_url=launch.url,
        parent_run_id=launch.run_id,
        review_url=launch.review_url,
        needs_ui=launch.needs_ui,
        cost=Ledger.read(sweep.tracking),
    )


def _config(sweep: SweepFolder, content: dict[str, Any]) -> ExperimentConfig:
    try:
        config = validate(with_absent_objects(content))
    except ConfigError as error:
        reason = f"the config of the sweep in {sweep.path} cannot be read: {error.problems[0].reason}"
        hint = "it may be that of another version of Paceline"
        raise ConfigError([Problem("run-config", reason, error.problems[0].key, hint=hint)]) from None
    learn(secrets_of(config))  # whatever is shown of the sweep
    return config


def _is_at_work(sweep: SweepFolder, store: RunStore | None) -> bool:
    """Return True if a process works on the sweep; one that was killed has left its status, but not its lock."""
    if store is None:
        newest = max(path.parent.name for path in sweep.path.parent.glob(f"*/{SweepFolder.FILE}"))
        if sweep.run_id != newest:
            return False
    home = store.home if store is not None else sweep.path.parent
    return is_in_progress(home, str(sweep.read().get(LAUNCH, "")))


def _left(trial: Trial) -> Trial:
    """A trial of which nobody is at work any more."""
    return replace(trial, state="pending") if trial.state == "running" else trial


def _status(written: object, over: str) -> str:
    """The status that `sweep` has returned; one that was killed has returned none, and can continue."""
    if written == "finished":
        return "stopped" if over else "finished"
    # out of its time, it can continue all the same
    return "stopped" if written == "interrupted" and "sweep.stop" in over else "interrupted"


def _last_launch(folder: Path, is_running: bool) -> _Launch:
    try:
        record = RunRecord.load(folder)
    except (OSError, ValueError, TypeError, KeyError):  # killed before it had one
        return _Launch()
    end, over = time.time() if is_running else 0.0, ""
    for entry in Journal(folder / JOURNAL_FILE).read():
        if entry.kind == "status" and not is_running:
            end = entry.content["time_ms"] / 1000
        elif entry.kind == "tags":
            over = entry.content["tags"].get(metrics.STATUS_REASON, over)
    cursor = UploadCursor.load(folder / CURSOR_FILE)
    url = run_url(record.uri, cursor.experiment_id, cursor.run_id) if cursor.run_id else None
    seconds = max(end - record.start_time_ms / 1000, 0.0)
    review = review_url(record.uri, cursor.experiment_id, sweep_view_id(record.run_id))
    return _Launch(seconds, over, url, cursor.run_id or None, review, needs_ui=not is_http(record.uri))
