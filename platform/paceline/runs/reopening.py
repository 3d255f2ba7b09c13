"""`load_run`, `load_sweep`: a result from its folder, also of one that the command line has run, or that was killed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.final_report import read_outcome
from paceline.cluster.kept_checkpoints import MEASURED
from paceline.cluster.run_folder import SUMMARY, RunFolder
from paceline.cluster.run_result import RunResult
from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.imports import has_import_paths, make_importable, with_absent_objects
from paceline.config.shareable import secrets_of
from paceline.engine.manifest import numbered
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.redaction import learn
from paceline.runs.finding import STUDY_FILES, FoundRun, find_run
from paceline.runs.readable import readable
from paceline.storage.address import LAUNCH
from paceline.storage.in_progress import is_in_progress
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.results.reopening import sweep_in
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import read_log
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_views import RUNS_VIEW, review_url, sweep_view_id
from paceline.tracking.run_record import RunRecord
from paceline.tracking.tracking_uri import is_http, run_url
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor


class _TuneupFolder(RunFolder):
    FILE = STUDY_FILES["tune-up"]


class _ScaleFolder(RunFolder):
    FILE = STUDY_FILES["scale"]


@dataclass(frozen=True)
class _Recorded:
    """Contents of a run's own record."""

    points: list[MetricPoint]
    seconds: float = 0.0
    url: str | None = None
    run_id: str | None = None
    review_url: str | None = None
    needs_ui: bool = False
    stopped_early: str | None = None
    straggler: str = ""


def load_run(run: str | Path) -> RunResult:
    """The result of a run that has run before, or is running, as `train` returns it. Changes nothing, runs no code.

    Args:
        run: its folder, or what `find_run` takes: a name, a name and an id, MLflow's id. A sweep's trial is a run, too.
            A name that also has sweeps means its newest run, unless it is in an object store.

    Raises:
        EnvironmentFault: there is no such run; it says what there is.
        ConfigError: the run's config is none any more, such as that of another version of Paceline.
    """
    found = find_run(run).preferring("run")
    if found.kind == "sweep":
        hint = f"open it with load_sweep({str(run)!r}), or name one of its trials"
        raise EnvironmentFault(f"{found.folder} is a sweep: {hint}", "other-kind", kind="sweep")
    return result_of(found)


def result_of(found: FoundRun) -> RunResult:
    """The result of a run or a trial; see `load_run`."""
    with readable(found.folder):
        return _result_of_trial(found) if found.kind == "trial" else _result_of_run(found)


def load_sweep(sweep: str | Path) -> SweepResult:
    """The result of a sweep that has run before, or is running, as `sweep` returns it. Changes nothing, runs no code.

    Args:
        sweep: its folder, or what `find_run` takes: a name, a name and an id, MLflow's id. A name that also has runs
            means its newest sweep, unless it is in an object store.

    Raises:
        EnvironmentFault: there is no such sweep; it says what there is.
        ConfigError: the sweep's config is none any more, such as that of another version of Paceline.
    """
    found = find_run(sweep).preferring("sweep")
    if found.kind != "sweep":
        hint = "" if found.sweep is None else f", or name its sweep, {found.sweep}"
        told = f"{found.folder} is a {found.kind}: open it with load_run({str(sweep)!r}){hint}"
        raise EnvironmentFault(told, "other-kind", kind=found.kind)
    return sweep_of(found)


def sweep_of(found: FoundRun) -> SweepResult:
    """The result of a sweep; see `load_sweep`."""
    with readable(found.folder):
        return sweep_in(found.folder, found.store)


def config_of(found: FoundRun) -> ExperimentConfig:
    """The config that a run or a trial was trained with. Imports nothing of the user's, but lets it be found.

    Raises:
        EnvironmentFault: its folder is not whole.
        ConfigError: it is none any more.
    """
    if found.sweep is None:
        return _config(found, RunFolder(found.folder).read())
    sweep = _config(found, SweepFolder(found.sweep).read())
    return trial_config(sweep, _trial(found).params)


def recorded_points(found: FoundRun) -> list[MetricPoint]:
    """All points that a run has recorded, in the order they came."""
    entries = Journal(found.tracking / JOURNAL_FILE).read()
    return [MetricPoint.from_json(entry.content) for entry in entries if entry.kind == "point"]


def _config(found: FoundRun, content: dict[str, Any]) -> ExperimentConfig:
    if "config" not in content:
        raise EnvironmentFault(f"the folder of the {found} is not whole: there is no config in it", "no-config")
    if has_import_paths(content["config"]):
        make_importable([Path.cwd()])
    try:
        config = validate(with_absent_objects(content["config"]))
    except ConfigError as error:
        reason = f"the config of the {found} cannot be read: {error.problems[0].reason}"
        hint = "it may be that of another version of Paceline"
        raise ConfigError([Problem("run-config", reason, error.problems[0].key, hint=hint)]) from None
    learn(secrets_of(config))  # whatever is shown of the run
    return config


def _trial(found: FoundRun) -> Trial:
    trial = read_log(found.folder.parent.parent).trials.get(found.id)
    if trial is None:
        raise EnvironmentFault(f"the sweep's journal does not know the {found}", "no-run", run=found.id)
    return trial


def _result_of_run(found: FoundRun) -> RunResult:
    folder = RunFolder(found.folder)
    outcome = read_outcome(folder.tracking) or {}
    points = recorded_points(found)
    own = {
        "status": status_of(found),
        "warnings": tuple(folder.read().get("warnings", ())),
        "metrics": outcome.get("metrics") or _newest(points),
        "steps": int(outcome.get("step") or max((point.step for point in points), default=0)),
        "samples_per_second": float(outcome.get("samples_per_second") or 0.0),
        "peak_memory_bytes": int(outcome.get("peak_memory_bytes") or 0),
        "weights_sha256": str(outcome.get("weights_sha256") or ""),
    }
    return _result(found, own, points)


def _newest(points: list[MetricPoint]) -> dict[str, float]:
    """The newest value of each metric; what is reported about machines and costs is none of the training's."""
    return {point.key: point.value for point in points if "/" not in point.key or point.key.startswith(MEASURED)}


def _result_of_trial(found: FoundRun) -> RunResult:
    trial = _trial(found)
    own = {
        "status": trial.state,
        "metrics": dict(trial.metrics),
        "steps": trial.steps,
        "samples_per_second": trial.samples_per_second,
        "peak_memory_bytes": trial.peak_memory_bytes,
        "weights_sha256": trial.weights_sha256,
    }
    return _result(found, own, recorded_points(found))


def _result(found: FoundRun, own: dict[str, Any], points: list[MetricPoint]) -> RunResult:
    newest = next(((step, path) for step, path in numbered(found.checkpoints)), None)
    recorded = _recorded(found, points)
    return RunResult(
        **own,
        run_id=found.id,
        name=found.name,
        wall_seconds=recorded.seconds,
        checkpoint=_place(found, *newest) if newest is not None else "",
        config=config_of(found),
        folder=found.folder,
        mlflow_url=recorded.url,
        mlflow_run_id=recorded.run_id,
        review_url=recorded.review_url,
        needs_ui=recorded.needs_ui,
        cost=Ledger.read(found.tracking),
        stopped_early=recorded.stopped_early,
        straggler=recorded.straggler,
        points=tuple((point.key, point.value, point.step) for point in points),
    )


def _place(found: FoundRun, step: int, path: Path) -> str:
    if found.store is None:
        return str(path)
    from paceline.storage.stored_checkpoints import StoredCheckpoints

    return StoredCheckpoints(found.store).place_of(step)


def _recorded(found: FoundRun, points: list[MetricPoint]) -> _Recorded:
    try:
        record = RunRecord.load(found.tracking)
    except (OSError, ValueError, TypeError, KeyError):  # killed before it had one
        return _Recorded(points)
    end, tags = max((point.timestamp_ms for point in points), default=record.start_time_ms), dict[str, str]()
    for entry in Journal(found.tracking / JOURNAL_FILE).read():
        if entry.kind == "status":
            end = max(end, int(entry.content["time_ms"]))
        elif entry.kind == "tags":
            tags |= entry.content["tags"]
    cursor = UploadCursor.load(found.tracking / CURSOR_FILE)
    url = run_url(record.uri, cursor.experiment_id, cursor.run_id) if cursor.run_id else None
    seconds = max(end - record.start_time_ms, 0) / 1000
    view = sweep_view_id(record.parent) if record.parent else RUNS_VIEW
    review = review_url(record.uri, cursor.experiment_id, view)
    return _Recorded(
        points,
        seconds,
        url,
        cursor.run_id or None,
        review,
        not is_http(record.uri),
        tags.get(metrics.STOPPED_EARLY),
        tags.get(metrics.STRAGGLER, ""),
    )


def summary_of(found: FoundRun) -> str:
    """The result in one line, or the reason of a failure; empty while there is none, and after a training.

    Raises:
        EnvironmentFault: its file is damaged.
    """
    return summary_in(_folder_of(found).read())


def summary_in(content: Mapping[str, Any]) -> str:
    """The same from the content of a file; what was interrupted may still hold that of an earlier launch."""
    return str(content.get(SUMMARY, "")) if content.get("status") in ("finished", "failed") else ""


def _folder_of(found: FoundRun) -> RunFolder:
    kinds: dict[str, type[RunFolder]] = {"sweep": SweepFolder, "tune-up": _TuneupFolder, "scale": _ScaleFolder}
    return kinds.get(found.kind, RunFolder)(found.folder)


def status_of(found: FoundRun) -> str:
    """Return how a run, a sweep or a study stands. One that was killed has left its status, but not its lock.

    Raises:
        EnvironmentFault: its file is damaged.
    """
    folder = _folder_of(found)
    written = str(folder.read().get("status", ""))
    if written != "running":
        return written
    home = found.store.home if found.store is not None else folder.path.parent
    return "running" if is_in_progress(home, str(folder.read().get(LAUNCH, ""))) else "interrupted"
