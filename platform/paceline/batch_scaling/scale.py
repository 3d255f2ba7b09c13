"""`scale`: which batch size, which learning rate, how many workers.

claim a folder  ->  measure on one warm worker group  ->  recommended config, report, MLflow  ->  ScaleResult

The result of each job is in the folder's journal: a later launch continues where this one ends, see `ResumableBench`.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.batch_scaling.findings import ScaleFindings, StudyFailed
from paceline.batch_scaling.folder import SCALE, STUDIES, ScaleFolder, claim_study
from paceline.batch_scaling.mlflow_record import tell_mlflow
from paceline.batch_scaling.report_page import report_html
from paceline.batch_scaling.result import ScaleResult
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.study import ScaleStudy
from paceline.batch_scaling.texts import summary_text
from paceline.bench.bench import open_bench
from paceline.bench.clock import Clock
from paceline.bench.job_log import JobLog
from paceline.bench.mlflow_record import record_of
from paceline.bench.resumable_bench import ResumableBench, SpentTime
from paceline.cluster.listener import Listener, Stages
from paceline.cluster.preflight import check_this_machine, require_shared_places, warn_of_fixed_size
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import folder_removed, storage_folder, writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.train import close_seconds_of, unsent_text
from paceline.cluster.unfinished_runs import Intent, intent_of
from paceline.cluster.user_code import with_objects
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml, missing_modules
from paceline.config.scale import ScaleConfig
from paceline.config.shareable import secrets_of, shareable
from paceline.durable import write_durably
from paceline.errors import ConfigError
from paceline.places import default_address
from paceline.private_files import make_folder
from paceline.redaction import learn, redact
from paceline.tracking.mlflow_probe import damage_of
from paceline.tracking.tracking_uri import is_http, start_creating, tracking_uri

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks.base import Task


def scale(
    config: ExperimentConfig,
    *,
    target: Mapping[str, float] | None = None,
    budget_seconds: float | None = None,
    verify: bool = True,
    model: "Callable[..., nn.Module] | str | None" = None,
    data: "Callable[..., Any] | Mapping[str, Any] | Sequence[Any] | None" = None,
    task: "Callable[..., Task] | str | None" = None,
    resume: bool = False,
    new: bool = False,
    address: str | None = None,
    wait_seconds: float = 0.0,
    listener: Listener | None = None,
    on_result: Callable[[ScaleResult], object] | None = None,
) -> ScaleResult:
    """Measure how far larger batches pay for this config here, and recommend a batch size and a learning rate.

    An unfinished study of the same name and config is continued; what it has measured is not measured again.

    Args:
        config: from `load_config`; its section `scale` has the target and the time budget.
        target: in place of `scale.target`, such as `{"val/accuracy": 0.96}`.
        budget_seconds: in place of `scale.budget_seconds`.
        verify: train the recommendation and the config as it is to the target, with several seeds.
        model: a callable in place of the config's `model`; likewise `data` and `task`, see `train`.
        resume: start no new study, only continue an unfinished one.
        new: start a new study, even if there is an unfinished one.
        address: a Ray cluster's address; by default PACELINE_ADDRESS, else a private local Ray, or inside a submitted
            job its cluster.
        wait_seconds: how long to wait for a cluster that is too small or busy, see `train`.
        listener: gets stages and warnings. By default they are shown on a terminal and in a notebook; elsewhere, only
            warnings are written to stderr.
        on_result: is called with the result before the study counts as finished, see `train`.

    Raises:
        ConfigError: something about the config is wrong, or it differs from the unfinished study's.
        EnvironmentFault: GPUs, cores, MLflow, data or disk are lacking, or others than what the unfinished one had.
        RunFailed: the config as it is cannot be trained, does not reach the target, or the workers are gone.
    """
    spent = SpentTime(time.monotonic())
    config = with_target(with_objects(config, model=model, data=data, task=task), target, budget_seconds)
    learn(secrets_of(config))
    launch = ScaleLaunch(
        intent_of(resume=resume, new=new), address or default_address(), wait_seconds, verify, on_result
    )
    if listener is not None:
        return _scale(config, launch, listener, spent)
    from paceline.display import watched  # rich takes a moment to import

    with watched(config.name) as shown:
        return _scale(config, launch, shown, spent)


def with_target(
    config: ExperimentConfig, target: Mapping[str, float] | None, budget_seconds: float | None
) -> ExperimentConfig:
    """Return the config with its section `scale`, changed where something is given.

    Raises:
        ConfigError: the section is wrong.
    """
    given = {"scale.target": dict(target) if target else None, "scale.budget_seconds": budget_seconds}
    section = config if config.scale is not None else config.with_overrides({"scale": {}})
    return section.with_overrides({key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class ScaleLaunch:
    """The study to work on, and the place where it is measured."""

    intent: Intent
    address: str | None
    wait_seconds: float
    verifies: bool
    on_result: Callable[[ScaleResult], object] | None


@dataclass(frozen=True)
class _Place:
    """Everything that is settled before the first process is started."""

    folder: ScaleFolder
    log: JobLog
    uri: str
    close_seconds: float


def _scale(config: ExperimentConfig, launch: ScaleLaunch, listener: Stages, spent: SpentTime) -> ScaleResult:
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    storage = storage_folder(config)
    warn_of_fixed_size(config, "a scale study", listener)
    if on_cluster(launch.address):
        require_shared_places(config)
    else:
        check_this_machine(config)
    config = STUDIES.with_weights(config, storage / config.name, launch.intent)
    uri = tracking_uri(config.tracking, Path.cwd())
    close_seconds = close_seconds_of(uri, config.tracking.offline, listener)
    claimed = claim_study(config, storage, launch.intent)
    try:
        start_creating(uri)
        with closing(JobLog(claimed.folder.path, config.scaling.num_workers == 0)) as log:
            place = _Place(claimed.folder, log, uri, close_seconds)
            with terminating_interrupts():
                findings = _measure(config, place, launch, listener, spent)
            with terminating_interrupts():  # Ray has taken SIGTERM for itself
                result = _result(config, place, findings, listener, spent)
                if launch.on_result is not None:
                    launch.on_result(result)
                with writable(claimed.folder.path):
                    claimed.folder.write(status="finished", wall_seconds=result.wall_seconds)
                return result
    except BaseException as error:
        with suppress(OSError):
            is_over = isinstance(error, StudyFailed | ConfigError)
            claimed.folder.write(status="failed" if is_over else "interrupted")
            if is_over:
                shutil.rmtree(claimed.folder.checkpoints, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            hint = "--resume in place of --new" if launch.intent == "new" else "the same command"
            listener.stage(f"interrupted: {hint} resumes {claimed.folder.run_id}")
        raise
    finally:
        claimed.release()


def _measure(
    config: ExperimentConfig, place: _Place, launch: ScaleLaunch, listener: Stages, spent: SpentTime
) -> ScaleFindings:
    clock = Clock((config.scale or ScaleConfig()).budget_seconds, 0.0, spent)
    folder, log = place.folder, place.log
    if log.done:
        listener.stage(f"resuming {folder.run_id}, {log.done[-1].elapsed:.0f} s of whose budget are spent")
    with writable(folder.path):
        make_folder(folder.ray)
    with open_bench(config, SCALE, launch.address, launch.wait_seconds, folder.ray, listener) as bench:
        resumable = ResumableBench(bench, log, spent, SCALE)
        return ScaleStudy(config, resumable, clock, listener, folder.checkpoints, launch.verifies).run()


def _result(
    config: ExperimentConfig, place: _Place, findings: ScaleFindings, listener: Stages, spent: SpentTime
) -> ScaleResult:
    folder = place.folder
    if folder.is_removed:
        raise folder_removed("scale study", folder.path)
    text = recommended_yaml(config, findings)
    with writable(folder.path):
        write_durably(folder.findings, json.dumps(findings_json(findings), indent=1).encode())
        if text is not None:
            write_durably(folder.recommended, text.encode())
        write_durably(folder.report, report_html(config.name, folder.run_id, findings, text, spent.exact))
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    listener.stage("recording the study in MLflow")
    record = record_of(config, SCALE, folder.run_id, place.uri)
    with writable(folder.path):
        report = tell_mlflow(folder, record, findings, place.close_seconds)
    if reason := report.error or damage_of(place.uri, report.run_id):
        listener.event("warning", {"code": "unsent", "message": unsent_text(reason, folder.path)})
    return ScaleResult(
        scale_id=folder.run_id,
        name=config.name,
        findings=findings,
        config=config,
        recommended_path=str(folder.recommended) if text is not None else "",
        report_path=str(folder.report),
        folder=folder.path,
        wall_seconds=spent.exact,
        mlflow_url=report.url,
        mlflow_run_id=report.run_id,
        needs_ui=not is_http(place.uri),
    )


def recommended_yaml(config: ExperimentConfig, findings: ScaleFindings) -> str | None:
    """Return the recommended config as YAML; None where no file can hold it: a Python object is in it."""
    try:
        text = dump_yaml(shareable(config.with_overrides({**findings.recommended, "scale": None})))
    except ConfigError:
        return None
    return f"# {redact(f'{config.name}: {summary_text(findings)}')}.\n{text}"
