"""`sweep`: many trials of one experiment, from config to result.

claim the sweep  ->  trials  ->  coordinator, worker groups and Tune, side by side  ->  close the records  ->
SweepResult ->  concluded
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.initial_weights import with_initial_weights
from paceline.cluster.preflight import local_resources, require_shared_places, warn_of_fixed_size
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import folder_removed, storage_of, writable
from paceline.cluster.train import close_seconds_of, unsent_text
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, intent_of, with_pinned_weights
from paceline.cluster.user_code import with_objects
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.shareable import secrets_of
from paceline.errors import ConfigError, EnvironmentFault, Problem, RunFailed
from paceline.places import default_address
from paceline.private_files import make_folder
from paceline.redaction import learn, redact
from paceline.storage.address import StoreAddress
from paceline.storage.store_faults import LeaseLost
from paceline.sweeps.coordinator.sweep_rules import is_hopeless
from paceline.sweeps.extension import add_new_keys, claim_extension, earlier_sections, require_folder
from paceline.sweeps.launch import SweepLaunch
from paceline.sweeps.listener import SweepListener
from paceline.sweeps.planning.memory_limit import fitting
from paceline.sweeps.planning.planned_trials import plan_trials, section_of, trial_count
from paceline.sweeps.planning.sizing import TrialConfigs, fitting_shapes, slots_for
from paceline.sweeps.results.record import Closing
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.states import ENDED, NOT_TRAINED
from paceline.sweeps.sweep_folder import SWEEPS, SweepFolder, claim_sweep
from paceline.sweeps.sweep_log import SweepLog, read_log, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking.mlflow_probe import damage_of
from paceline.tracking.mlflow_views import review_url, sweep_view_id
from paceline.tracking.tracking_uri import is_http, start_creating, tracking_uri

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks.base import Task


def sweep(
    config: ExperimentConfig,
    *,
    space: Mapping[str, Any] | None = None,
    metric: str | Sequence[str] | None = None,
    model: "Callable[..., nn.Module] | str | None" = None,
    data: "Callable[..., Any] | Mapping[str, Any] | Sequence[Any] | None" = None,
    task: "Callable[..., Task] | str | None" = None,
    resume: bool = False,
    new: bool = False,
    extend: bool = False,
    init_from: str | Path | None = None,
    address: str | None = None,
    wait_seconds: float = 0.0,
    listener: SweepListener | None = None,
    on_result: Callable[[SweepResult], object] | None = None,
) -> SweepResult:
    """Run the trials of the config's `sweep` section.

    An unfinished sweep of the same name and config is continued; its finished trials are not run again.

    Args:
        config: from `load_config`.
        space: in place of the config's `sweep.space`, such as `{"optimizer.lr": [0.01, 0.1]}`.
        metric: in place of the config's `sweep.metric`.
        model: a callable in place of the config's `model`; likewise `data` and `task`, see `train`.
        resume: start no new sweep, only continue an unfinished one.
        new: start a new sweep, even if there is an unfinished one.
        extend: add trials to the newest finished sweep of this name, whose trials are kept: more values of the lists,
            wider ranges, a larger `sweep.num_samples` or more `sweep.seeds`.
        init_from: in place of the config's `model.weights`: a run or a file whose weights each trial starts from.
        address: a Ray cluster's address; by default PACELINE_ADDRESS, else a private local Ray, or inside a submitted
            job its cluster.
        wait_seconds: how long to wait for a cluster that is too small or busy, see `train`.
        listener: gets stages and trials. By default they are shown on a terminal and in a notebook; elsewhere, only
            warnings are written to stderr.
        on_result: is called with the result before the sweep counts as finished, see `train`.

    Raises:
        ConfigError: something about the config is wrong, or it differs from the unfinished sweep's; or a trial of the
            sweep that is to be extended would not belong to it any more.
        EnvironmentFault: GPUs, cores, MLflow, data or disk are lacking.
        RunFailed: no worker group could be started, or Ray failed. Trials that fail do not raise.
    """
    given = {"sweep.space": None if space is None else dict(space), "sweep.metric": _plain(metric)}
    if changes := {key: value for key, value in given.items() if value is not None}:
        config = config.with_overrides(changes)
    config = with_objects(config, model=model, data=data, task=task)
    config = with_initial_weights(config, init_from)
    learn(secrets_of(config))
    address = address or default_address()
    intent = intent_of(resume=resume, new=new, extend=extend)
    if intent == "extend" and init_from is not None:
        reason = "init_from and extend contradict each other: the trials of a sweep start from the same weights"
        raise ConfigError([Problem("contradiction", reason, hint="leave out init_from or extend")])
    if listener is not None:
        return _sweep(config, intent, address, wait_seconds, listener, on_result)
    from paceline.sweeps.display import watched_sweep  # rich takes a moment to import

    section = section_of(config)
    with watched_sweep(section.objectives, config.name, trial_count(section)) as shown:
        return _sweep(config, intent, address, wait_seconds, shown, on_result)


def _plain(metric: str | Sequence[str] | None) -> str | list[str] | None:
    return metric if metric is None or isinstance(metric, str) else list(metric)


def _sweep(
    config: ExperimentConfig,
    intent: Intent,
    address: str | None,
    wait_seconds: float,
    listener: SweepListener,
    on_result: Callable[[SweepResult], object] | None,
) -> SweepResult:
    start = time.monotonic()
    launch = replace(_prepare(config, intent, address, listener), wait_seconds=wait_seconds)
    try:
        closing = _run(launch)
        result = _result(launch, closing, time.monotonic() - start)
        if on_result is not None:
            on_result(result)
        if not closing.can_continue:
            launch.conclude(result.summary)
        return result
    finally:
        launch.claimed.release()


def _prepare(config: ExperimentConfig, intent: Intent, address: str | None, listener: SweepListener) -> SweepLaunch:
    """Check what can be checked, and claim the sweep. Starts nothing."""
    section_of(config)
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    storage = storage_of(config)
    if intent == "extend":
        require_folder(storage)
    if on_cluster(address):
        require_shared_places(config)
    config = _with_weights(config, storage, intent)
    section = section_of(config)
    warn_of_fixed_size(config, "a sweep", listener)
    earlier = earlier_sections(config, storage / config.name, intent) if isinstance(storage, Path) else ()
    made, configs = plan_trials(config, earlier), TrialConfigs(config)
    if not on_cluster(address):
        available = local_resources()
        shapes = fitting_shapes(configs.of(made.planned_trials), available, "this machine")
        slots_for(section, shapes, available, len(made.planned_trials))
    here = Path.cwd()
    uri = tracking_uri(config.tracking, here)
    close_seconds = close_seconds_of(uri, config.tracking.offline, listener)
    claimed = _claim(config, storage, intent, listener)
    try:
        if claimed.folder.earlier != earlier:  # another command has worked on the name in the meantime
            earlier = claimed.folder.earlier
            made = plan_trials(config, earlier)
        start_creating(uri)
        with writable(claimed.folder.path):
            make_folder(claimed.folder.trials)
            add_new_keys(claimed.folder.path, config, made)
            ended = read_log(claimed.folder.path).ended
            fit = fitting(config, made, ended, listener)
            _write_skipped(claimed.folder.path, fit.made.skipped)
        history = read_log(claimed.folder.path)
    except BaseException:
        claimed.release()
        raise
    launch = SweepLaunch(
        config,
        section,
        claimed,
        uri,
        tuple(fit.made.planned_trials),
        tuple(fit.made.skipped),
        configs,
        history,
        address,
        listener,
        close_seconds,
        here,
        predicted_bytes=fit.predicted_bytes,
        earlier=earlier,
    )
    listener.planned(_plan_lines(launch, intent))
    return launch


def _with_weights(config: ExperimentConfig, storage: Path | StoreAddress, intent: Intent) -> ExperimentConfig:
    if isinstance(storage, Path):
        return SWEEPS.with_weights(config, storage / config.name, intent)
    from paceline.sweeps.stored_sweep import unfinished_content

    return with_pinned_weights(config, {} if intent == "new" else unfinished_content(storage, config.name))


def _claim(
    config: ExperimentConfig, storage: Path | StoreAddress, intent: Intent, listener: SweepListener
) -> ClaimedRun[SweepFolder]:
    if isinstance(storage, Path):
        return claim_extension(config, storage) if intent == "extend" else claim_sweep(config, storage, intent)
    from paceline.sweeps.stored_sweep import claim_stored_sweep

    listener.stage(f"looking into {storage.bare}")
    return claim_stored_sweep(config, storage, intent, listener.stage)


def _write_skipped(folder: Path, skipped: Sequence[Trial]) -> None:
    log = SweepLog(folder)
    try:
        log.append([trial_entry(trial) for trial in skipped if trial.id not in log.history.trials])
    finally:
        log.close()


def _plan_lines(launch: SweepLaunch, intent: Intent) -> list[tuple[str, str]]:
    known = launch.history
    lines = [("trials", f"{launch.total} over {', '.join(launch.sweep.space)}")]
    unfit = sum(trial.state == "predicted_oom" for trial in launch.skipped)
    if len(launch.skipped) > unfit:
        lines.append(("skipped", f"{len(launch.skipped) - unfit} that are not a valid config"))
    if unfit:
        lines.append(("left out", f"{unfit} predicted to run out of memory"))
    if launch.claimed.resumed:
        word = "extended" if intent == "extend" else "resumed"
        lines.append((word, f"{launch.folder.run_id}: {len(known.ended) - len(launch.skipped)} have ended"))
    return lines


def _run(launch: SweepLaunch) -> Closing:
    from paceline.sweeps.sweep_on_ray import run_on_ray

    if not launch.has_work:
        launch.listener.stage("all trials have ended")
    # what workers print arrives on this process's stdout, where only the result belongs
    with redirect_stdout(sys.stderr):
        closing = run_on_ray(launch)
    if not launch.folder.is_removed:
        _settle(launch)
    return closing


def _settle(launch: SweepLaunch) -> None:
    """See to it that all of the sweep is where it is kept.

    Raises:
        LeaseLost: another machine continues with it.
    """

    def warn(message: str) -> None:
        launch.listener.event("warning", {"code": "record-not-stored", "message": message})

    launch.claimed.settle(warn)
    if launch.claimed.lost:
        raise LeaseLost(launch.claimed.lost, "lease-lost")


def _incomplete(trials: Sequence[Trial]) -> str:
    """Return the number of ended trials of which MLflow lacks something, as text; empty for none."""
    ended = [trial for trial in trials if trial.state in ENDED and trial.state not in NOT_TRAINED]
    lacking = sum(not trial.mlflow_run_id for trial in ended)
    return f"{lacking} trial{'s are' if lacking > 1 else ' is'} incomplete" if lacking else ""


def _disk_full(launch: SweepLaunch, closing: Closing) -> EnvironmentFault:
    left = launch.total + len(launch.skipped) - sum(trial.state in ENDED for trial in closing.trials)
    message = (
        f"the sweep stopped with {left} trial{'' if left == 1 else 's'} left, since a disk is full: "
        f"{closing.disk_full.rstrip('.')}. Once there is room, the same command resumes the sweep"
    )
    return EnvironmentFault(redact(message), "disk-full", left=left, folder=str(launch.folder.path))


def _result(launch: SweepLaunch, closing: Closing, seconds: float) -> SweepResult:
    if launch.folder.is_removed:
        raise folder_removed("sweep", launch.folder.path, "The same command starts a new one")
    if closing.disk_full:
        raise _disk_full(launch, closing)
    if closing.fault:
        failed = RunFailed(redact(f"the sweep cannot continue: {closing.fault}"), "")
        if is_hopeless(closing.fault):
            failed.code = "unknown-metric"
        raise failed
    report = closing.report
    if reason := report["error"] or _incomplete(closing.trials) or damage_of(launch.uri, report["run_id"]):
        launch.listener.event("warning", {"code": "unsent", "message": unsent_text(reason, launch.folder.path)})
    best = launch.folder.best_config
    return SweepResult(
        sweep_id=launch.folder.run_id,
        name=launch.config.name,
        status=closing.status,
        trials=tuple(closing.trials),
        objectives=tuple(launch.sweep.objectives),
        config=launch.config,
        folder=launch.folder.path,
        best_config_path=str(best) if best.exists() else "",
        wall_seconds=seconds,
        mlflow_url=closing.report["url"],
        parent_run_id=closing.report["run_id"],
        review_url=review_url(launch.uri, closing.report["experiment_id"], sweep_view_id(launch.folder.run_id)),
        needs_ui=not is_http(launch.uri),
        cost=closing.cost,
    )
