"""`scale`: which batch size, which learning rate, how many workers.

claim a folder  ->  measure on a warm worker group  ->  recommended config, report, MLflow  ->  ScaleResult

The result of each job is in the folder's journal: a later launch continues where this one ends, see `ResumableBench`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.batch_scaling.findings import ScaleFindings, StudyFailed
from paceline.batch_scaling.folder import SCALE, STUDIES, ScaleFolder
from paceline.batch_scaling.mlflow_record import record_in_mlflow
from paceline.batch_scaling.report_page import report_html
from paceline.batch_scaling.result import ScaleResult
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.study import ScaleStudy
from paceline.batch_scaling.texts import summary_text
from paceline.bench.bench import Bench, open_bench
from paceline.bench.clock import Clock
from paceline.bench.resumable_bench import ResumableBench, SpentTime
from paceline.bench.study_end import StudyAnswer, end_study
from paceline.bench.study_launch import StudyLaunch, StudyPlace, opened_study
from paceline.cluster.listener import Listener, Stages
from paceline.cluster.preflight import check_this_machine
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.unfinished_runs import intent_of
from paceline.cluster.user_code import with_objects
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml, missing_modules
from paceline.config.overrides import override_texts
from paceline.config.scale import ScaleConfig
from paceline.config.shareable import secrets_of, shareable
from paceline.errors import ConfigError
from paceline.places import default_address
from paceline.private_files import make_folder
from paceline.redaction import learn, redact

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks.base import Task


def scale(
    config: ExperimentConfig,
    *,
    target: Mapping[str, float] | None = None,
    budget_seconds: float | None = None,
    verify: bool | None = None,
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
        verify: in place of `scale.verify`.
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
    config = _with_section(with_objects(config, model=model, data=data, task=task), target, budget_seconds, verify)
    learn(secrets_of(config))
    launch = ScaleLaunch(intent_of(resume=resume, new=new), address or default_address(), wait_seconds, on_result)
    if listener is not None:
        return _scale(config, launch, listener, spent)
    from paceline.display import watched  # rich takes a moment to import

    with watched(config.name) as shown:
        return _scale(config, launch, shown, spent)


def _with_section(
    config: ExperimentConfig, target: Mapping[str, float] | None, budget_seconds: float | None, verify: bool | None
) -> ExperimentConfig:
    """Return the config with its section `scale`, changed where something is given.

    Raises:
        ConfigError: the section is wrong.
    """
    given = {
        "scale.target": dict(target) if target else None,
        "scale.budget_seconds": budget_seconds,
        "scale.verify": verify,
    }
    section = config if config.scale is not None else config.with_overrides({"scale": {}})
    return section.with_overrides({key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class ScaleLaunch(StudyLaunch):
    """The study to work on, and the place where it is measured."""

    on_result: Callable[[ScaleResult], object] | None


def _scale(config: ExperimentConfig, launch: ScaleLaunch, listener: Stages, spent: SpentTime) -> ScaleResult:
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    with opened_study(config, SCALE, STUDIES, launch, listener, (StudyFailed, ConfigError)) as place:
        with terminating_interrupts():
            findings = _measure(place, launch, listener, spent)
        with terminating_interrupts():  # Ray has taken SIGTERM for itself
            return _end(place, findings, launch, listener, spent)


def _measure(place: StudyPlace[ScaleFolder], launch: ScaleLaunch, listener: Stages, spent: SpentTime) -> ScaleFindings:
    config, folder, log = place.config, place.folder, place.log
    clock = Clock((config.scale or ScaleConfig()).budget_seconds, 0.0, spent)
    if log.done:
        listener.stage(f"resuming {folder.run_id}, {log.done[-1].elapsed:.0f} s of whose budget are spent")
    with writable(folder.path):
        make_folder(folder.ray)
    with open_bench(config, SCALE, launch.address, launch.wait_seconds, folder.ray, listener) as bench:
        resumable = ResumableBench(bench, log, spent, SCALE, folder)
        study = ScaleStudy(config, resumable, clock, listener, folder.checkpoints, place.notes)
        findings = study.run()

    def warn(message: str) -> None:
        text = f"closing the workers of a measurement failed: {message}"
        listener.event("warning", {"code": "workers-not-closed", "message": text})

    def moved_to(config: ExperimentConfig) -> AbstractContextManager[None]:
        return resumable.moved(lambda: _bench_with_room(config, launch, folder, listener), warn)

    return study.measure_workers(findings, moved_to)


def _bench_with_room(
    config: ExperimentConfig, launch: ScaleLaunch, folder: ScaleFolder, listener: Stages
) -> AbstractContextManager[Bench]:
    """Open a bench only if there is room for it now.

    Raises:
        EnvironmentFault: there is none.
    """
    if not on_cluster(launch.address):
        check_this_machine(config)
    return open_bench(config, SCALE, launch.address, None, folder.ray, listener)


def _end(
    place: StudyPlace[ScaleFolder], findings: ScaleFindings, launch: ScaleLaunch, listener: Stages, spent: SpentTime
) -> ScaleResult:
    config, folder = place.config, place.folder
    summary, changes = summary_text(findings), " ".join(override_texts(findings.recommended))
    text = recommended_yaml(config, findings)
    report = report_html(config.name, folder.run_id, findings, text, spent.exact)
    return end_study(
        place,
        SCALE,
        StudyAnswer(summary, f"{changes}: {summary}" if changes else summary, findings_json(findings), text, report),
        spent,
        listener,
        lambda record: record_in_mlflow(folder, record, findings, place.close_seconds),
        lambda end: ScaleResult(scale_id=folder.run_id, findings=findings, **vars(end)),
        launch.on_result,
    )


def recommended_yaml(config: ExperimentConfig, findings: ScaleFindings) -> str | None:
    """Return the recommended config as YAML; None where no file can hold it: a Python object is in it."""
    try:
        text = dump_yaml(shareable(config.with_overrides({**findings.recommended, "scale": None})))
    except ConfigError:
        return None
    return f"# {redact(f'{config.name}: {summary_text(findings)}')}.\n{text}"
