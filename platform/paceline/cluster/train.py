"""`train`: one experiment from config to result.

claim the run  ->  record at hand  ->  train here or on Ray  ->  close the record  ->  RunResult  ->  concluded
"""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.final_report import forget_outcome
from paceline.cluster.finished_training import finished_training, record_finished
from paceline.cluster.initial_weights import adopt_weights, pin_weights, with_initial_weights
from paceline.cluster.listener import Events, Listener, WarningLog
from paceline.cluster.preflight import check_this_machine, require_shared_places, worker_threads
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import RunFolder, storage_of, writable
from paceline.cluster.run_result import RunResult
from paceline.cluster.train_launch import CLOSE_SECONDS, TrainLaunch
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, claim_run, intent_of
from paceline.cluster.user_code import with_objects, with_parts
from paceline.cluster.worker_group import error_of
from paceline.config.derived import Derived, StageValues, derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.lightning import unused_sections
from paceline.config.loading import dump_yaml, missing_modules
from paceline.config.shareable import secrets_of, shareable
from paceline.errors import ConfigError, EnvironmentFault
from paceline.places import default_address
from paceline.redaction import learn
from paceline.storage.address import StoreAddress
from paceline.storage.store_faults import LeaseLost
from paceline.tracking import metrics as metric_keys
from paceline.tracking.mlflow_probe import HINT_OF_SILENCE, damage_of, probe
from paceline.tracking.mlflow_views import RUNS_VIEW, review_url, run_views
from paceline.tracking.provenance import command_line, provenance
from paceline.tracking.run_record import RunRecord, flatten
from paceline.tracking.tracking_uri import (
    is_http,
    start_creating,
    tracking_uri,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from paceline.callbacks.callback import Callback
    from paceline.tasks.base import Task


_KEPT = "the metrics stay in the run's journal until it answers"
OFFLINE_CLOSE_SECONDS = 5.0
"""Seconds that the end of a run waits for MLflow if it did not answer at the start. If it still does not, the end waits
for 1 s at most."""


def train(
    config: ExperimentConfig,
    *,
    model: "Callable[..., nn.Module] | str | None" = None,
    data: "Callable[..., Any] | Mapping[str, Any] | Sequence[Any] | None" = None,
    task: "Callable[..., Task] | str | None" = None,
    optimizer: "Callable[..., Optimizer] | str | None" = None,
    lr_scheduler: "Callable[..., float] | str | None" = None,
    metrics: Mapping[str, Any] | None = None,
    callbacks: "Sequence[Callback | Callable[..., Callback] | str]" = (),
    resume: bool = False,
    new: bool = False,
    fork: bool = False,
    extend: bool = False,
    init_from: str | Path | None = None,
    address: str | None = None,
    wait_seconds: float = 0.0,
    listener: Listener | None = None,
    on_result: Callable[[RunResult], object] | None = None,
) -> RunResult:
    """Run one experiment. The newest unfinished run of its name is continued, unless another one is asked for.

    A run is finished once its result was returned. If the program dies between the end of training and that, the same
    call returns the result without training again.

    Args:
        config: from `load_config`.
        model: a callable that returns a `torch.nn.Module`, in place of the config's `model`; called with the config's
            `model.args`, where it has some. Likewise the other two.
        data: a callable that returns `(train, validation)` or a mapping of data sets, or what it would return, in place
            of the config's `data.name` or `data.path`; batch sizes and loader settings stay.
        task: a callable that takes `model` and returns a `Task`, in place of the config's `task`.
        optimizer: a torch-style optimizer class, in place of the config's; `lr` and the like stay.
        lr_scheduler: a function `factor(step, total_steps)`, in place of the config's.
        metrics: by name, callables that return a metric object; beside the config's.
        callbacks: `Callback` objects, or callables that return one; beside the config's.
        resume: start no new run, only continue an unfinished one.
        new: start a new run, even if there is an unfinished one.
        fork: branch off an unfinished run of this name whose config differs.
        extend: train the newest finished run of this name further, to the length that the config asks for, as a new run
            that begins with its last checkpoint. An unfinished extension is continued. At most one of these four.
        init_from: in place of the config's `model.weights`: a run or a file whose weights a new run starts from.
        address: a Ray cluster's address; by default PACELINE_ADDRESS, else a private local Ray, or inside a submitted
            job its cluster.
        wait_seconds: seconds to wait for nodes to join a cluster that is too small, and for resources that others have
            taken. 0: a cluster that can never hold the run is an error at once; nodes of an autoscaler are waited for
            anyhow.
        listener: gets stages, progress and warnings. By default they are shown on a terminal and in a notebook;
            elsewhere, only warnings are written to stderr. `SilentListener()` of `paceline.cluster.listener` shows
            nothing.
        on_result: is called with the result before the run counts as finished, such as to store it elsewhere.

    Raises:
        ConfigError: something about the config is wrong, or it differs from the unfinished run's; or `fork` is set and
            the newest run of the name is finished; or there is nothing to resume or to extend.
        EnvironmentFault: GPUs, cores, MLflow, data or disk are lacking.
        RunFailed: training failed.
    """
    config = with_objects(config, model=model, data=data, task=task)
    config = with_parts(config, optimizer, lr_scheduler, metrics or {}, callbacks)
    config = with_initial_weights(config, init_from)
    learn(secrets_of(config))
    address = address or default_address()
    intent = intent_of(resume=resume, new=new, fork=fork, extend=extend)
    if listener is not None:
        return _train(config, intent, address, wait_seconds, listener, on_result)
    from paceline.display import watched  # rich takes a moment to import

    with watched(config.name) as shown:
        return _train(config, intent, address, wait_seconds, shown, on_result)


def _train(
    config: ExperimentConfig,
    intent: Intent,
    address: str | None,
    wait_seconds: float,
    listener: Listener,
    on_result: Callable[[RunResult], object] | None,
) -> RunResult:
    start = time.monotonic()
    prepared = prepare_launch(config, intent, address, listener)
    launch = replace(prepared, began=start, wait_seconds=wait_seconds)
    try:
        ending, closing = _runner(launch)(launch)
        launch.keep_warnings()
        launch.run.settle(lambda text: launch.listener.event("warning", {"code": "record-not-stored", "message": text}))
        if launch.run.lost and ending["status"] != "failed":
            raise LeaseLost(launch.run.lost, "lease-lost")
        result = _result(launch, ending, closing, time.monotonic() - start)
        result = replace(result, warnings=launch.keep_warnings())
        if on_result is not None:
            on_result(result)
        if ending["status"] == "finished":
            launch.conclude()
        return result
    finally:
        launch.run.release()


def prepare_launch(config: ExperimentConfig, intent: Intent, address: str | None, listener: Listener) -> TrainLaunch:
    """Check what can be checked, and claim the run. Starts nothing."""
    log = WarningLog(listener)
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    storage = storage_of(config)
    if on_cluster(address):
        require_shared_places(config)
    uri = tracking_uri(config.tracking, Path.cwd())
    close_seconds = close_seconds_of(uri, config.tracking.offline, log)
    if not on_cluster(address):
        check_this_machine(config)
    derived = derive(config, config.data.sizes())
    log.planned(derived.lines())
    run = _claim(config, storage, intent, log)
    try:
        config = adopt_weights(config, run.folder.read().get("config", {}))
        if run.resumed and run.store is None and not any(run.folder.checkpoints.glob("step-*")):
            pin_weights(config)  # they are loaded again
        ending = finished_training(run, config)
        if ending is None:
            with writable(run.folder.path):
                forget_outcome(run.folder.tracking)
        start_creating(uri)
        record = make_record(config, run, uri, derived)
    except BaseException:
        run.release()
        raise
    return TrainLaunch(config, run, record, derived, address, log, close_seconds, ending=ending)


def _claim(
    config: ExperimentConfig,
    storage: Path | StoreAddress,
    intent: Intent,
    listener: Listener,
) -> ClaimedRun[RunFolder]:
    def warn(message: str) -> None:
        listener.event("warning", {"code": "starts-from-scratch", "message": message})

    if isinstance(storage, Path):
        return claim_run(config, storage, intent, warn)
    from paceline.cluster.stored_runs import claim_stored_run

    listener.stage(f"looking into {storage.bare}")
    return claim_stored_run(config, storage, intent, listener.stage, warn)


def close_seconds_of(uri: str, offline: str, listener: Events) -> float:
    """Check if MLflow answers, and return the seconds that the end of a run waits for it.

    Raises:
        EnvironmentFault: it does not answer, and `tracking.offline` is `refuse`.
    """
    try:
        probe(uri)
    except EnvironmentFault as error:
        if offline == "refuse":
            raise
        reason = error.message.removesuffix(f"; {HINT_OF_SILENCE}")
        listener.event("warning", {"code": "mlflow-offline", "message": f"{reason}; {_KEPT}"})
        return OFFLINE_CLOSE_SECONDS
    return CLOSE_SECONDS


def make_record(config: ExperimentConfig, run: ClaimedRun[RunFolder], uri: str, derived: Derived) -> RunRecord:
    """Return the record of the run, which MLflow gets before it starts."""
    origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
    return RunRecord(
        run_id=run.folder.run_id,
        name=config.name,
        uri=uri,
        experiment=config.tracking.experiment or config.name,
        params=record_params(config, derived),
        tags={**origin.tags, **_origin_tags(run.folder.read())},
        artifacts={"config.yaml": dump_yaml(shareable(config)), **origin.artifacts},
        secrets=secrets_of(config),
        views=run_views(),
    )


def _origin_tags(content: Mapping[str, Any]) -> dict[str, str]:
    """Return tags with the run that a run begins with, from its file."""
    tags = {
        metric_keys.FORKED_FROM: content.get("forked_from"),
        metric_keys.EXTENDED_FROM: content.get("extended_from"),
    }
    return {key: str(run_id) for key, run_id in tags.items() if run_id}


def record_params(config: ExperimentConfig, derived: Derived) -> dict[str, Any]:
    """Return the config and its derived values, by dotted key, as MLflow's params; without the sections that a run
    ignores."""
    numbers = {
        "derived.world_size": derived.batch.world_size,
        "derived.global_batch_size": _each(derived, lambda stage: stage.batch.global_batch_size),
        "derived.micro_batch_size": _each(derived, lambda stage: stage.batch.micro_batch_size),
        "derived.gradient_accumulation_steps": _each(derived, lambda stage: stage.batch.gradient_accumulation_steps),
        "derived.lr": _each(derived, lambda stage: stage.lr),
        "derived.total_steps": derived.total_steps,
        "derived.threads_per_worker": worker_threads(config),
    }
    unused = {"sweep", "scale", "tuneup", *unused_sections(config)}
    return {**flatten(shareable(config).model_dump(mode="json", exclude=unused)), **numbers}


def _each(derived: Derived, value_of: Callable[[Derived | StageValues], Any]) -> Any:
    """Return a derived value; with a batch-size schedule those of the stages as text, such as `64, 256`."""
    return ", ".join(str(value_of(stage)) for stage in derived.stages) if derived.stages else value_of(derived)


def _runner(launch: TrainLaunch) -> Callable[[TrainLaunch], tuple[dict[str, Any], dict[str, Any]]]:
    if launch.ending is not None:
        return record_finished
    if launch.config.scaling.num_workers == 0:
        from paceline.cluster.train_in_process import train_in_process

        return train_in_process
    from paceline.cluster.train_on_ray import train_on_ray

    return train_on_ray


def _result(launch: TrainLaunch, ending: dict[str, Any], closing: dict[str, Any], seconds: float) -> RunResult:
    run = launch.run.folder
    if reason := closing["report"]["error"] or damage_of(launch.record.uri, closing["report"]["run_id"]):
        place = run.path if launch.run.store is None else str(launch.run.store.shown_address())
        text = unsent_text(reason, place)
        launch.listener.event("warning", {"code": "unsent", "message": text, "place": str(place)})
    if ending["status"] == "failed":
        raise ending["error"] if "error" in ending else error_of(ending["failure"])
    return RunResult(
        run_id=run.run_id,
        name=launch.config.name,
        status="interrupted" if ending["stopped"] else "finished",
        metrics=ending["metrics"],
        steps=ending["step"],
        samples_per_second=ending["samples_per_second"],
        peak_memory_bytes=ending["peak_memory_bytes"],
        wall_seconds=seconds,
        checkpoint=ending["checkpoint"],
        weights_sha256=ending["weights_sha256"],
        config=launch.config,
        folder=run.path,
        mlflow_url=closing["report"]["url"],
        mlflow_run_id=closing["report"]["run_id"],
        review_url=review_url(launch.record.uri, closing["report"]["experiment_id"], RUNS_VIEW),
        needs_ui=not is_http(launch.record.uri),
        points=tuple((key, value, step) for key, value, step in closing["history"]),
        cost=closing["cost"],
        stopped_early=ending.get("stopped_early"),
        straggler=closing["report"].get("straggler", ""),
    )


def unsent_text(reason: str, place: Path | str) -> str:
    """Return the message at the end of a run of which MLflow lacks something, with the command that sends it.

    Args:
        place: the run's folder, or its address.
    """
    if isinstance(place, Path) and place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    return f"MLflow does not have everything: {reason}; `paceline sync {shlex.quote(str(place))}` sends the rest"
