"""`tuneup`: measures each technique on a model and its hardware.

claim a folder  ->  measure on one warm worker group  ->  recommended config, report, MLflow  ->  TuneupResult

The result of each job is in the folder's journal: a later launch resumes where this one ends, see `resumable_bench`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.batch_scaling.earlier_study import EarlierStudy, earlier_study
from paceline.bench.bench import open_bench
from paceline.bench.clock import Clock
from paceline.bench.job_log import JobLog
from paceline.bench.jobs import START_ANEW
from paceline.bench.resumable_bench import ResumableBench, SpentTime
from paceline.bench.study_end import StudyAnswer, end_study
from paceline.bench.study_launch import StudyLaunch, StudyPlace, opened_study
from paceline.cluster.ray_session import is_private
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.unfinished_runs import intent_of
from paceline.cluster.user_code import with_objects
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.own_techniques import missing_in_techniques
from paceline.config.shareable import secrets_of
from paceline.config.tuneup import TuneupConfig
from paceline.errors import ConfigError, EnvironmentFault, coded
from paceline.linting.apart import TIMEOUT_SECONDS, LintApart
from paceline.places import default_address
from paceline.private_files import make_folder
from paceline.redaction import learn
from paceline.tuneups.course import TuneupCourse
from paceline.tuneups.folder import TUNEUP, TUNEUPS, TuneupFolder
from paceline.tuneups.mlflow_record import record_in_mlflow
from paceline.tuneups.outcome import BaselineFailed, Findings
from paceline.tuneups.recommended_config import recommended_yaml
from paceline.tuneups.report_page import report_html
from paceline.tuneups.result import TuneupResult
from paceline.tuneups.stored_findings import findings_json
from paceline.tuneups.texts import answer_text
from paceline.tuneups.watcher import Watcher

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks.base import Task

LINT_SHARE = 0.15
"""Largest share of the budget that lint may take, once torch is imported."""


def tuneup(
    config: ExperimentConfig,
    *,
    model: "Callable[..., nn.Module] | str | None" = None,
    data: "Callable[..., Any] | Mapping[str, Any] | Sequence[Any] | None" = None,
    task: "Callable[..., Task] | str | None" = None,
    resume: bool = False,
    new: bool = False,
    address: str | None = None,
    wait_seconds: float = 0.0,
    listener: Watcher | None = None,
    on_result: Callable[[TuneupResult], object] | None = None,
) -> TuneupResult:
    """Measure which techniques help this config here, and recommend a config of those that do.

    An unfinished tune-up of the same name and config is resumed, and its measurements are reused.

    Args:
        config: config from `load_config`. Its section `tuneup` sets the time budget and the margin of equal quality.
        model: a callable in place of the config's `model`; likewise `data` and `task`, see `train`.
        resume: only resume an unfinished tune-up; do not start a new one.
        new: start a new tune-up, even if an unfinished one exists.
        address: address of a Ray cluster. By default PACELINE_ADDRESS, else a private local Ray, or inside a submitted
            job its cluster.
        wait_seconds: seconds to wait for a cluster that is too small or busy, see `train`.
        listener: receives stages and benchmarks. By default they are shown on a terminal and in a notebook; elsewhere,
            only warnings are written to stderr.
        on_result: called with the result before the tune-up counts as finished, see `train`.

    Raises:
        ConfigError: the config is invalid, or differs from that of the unfinished tune-up.
        EnvironmentFault: GPUs, cores, MLflow, data or disk space are missing, or differ from those of the unfinished
            tune-up.
        RunFailed: the baseline itself cannot be trained, or the workers are gone. Techniques that fail do not raise.
    """
    spent = SpentTime(time.monotonic())
    config = with_objects(config, model=model, data=data, task=task)
    learn(secrets_of(config))
    address = address or default_address()
    launch = TuneupLaunch(intent_of(resume=resume, new=new), address, wait_seconds, on_result)
    if listener is not None:
        return _tuneup(config, launch, listener, spent)
    from paceline.tuneups.display import watched_tuneup  # rich takes a moment to import

    with watched_tuneup(config) as shown:
        return _tuneup(config, launch, shown, spent)


@dataclass(frozen=True)
class TuneupLaunch(StudyLaunch):
    """Tune-up to run or resume, and the place where it is measured."""

    on_result: Callable[[TuneupResult], object] | None


def _tuneup(config: ExperimentConfig, launch: TuneupLaunch, listener: Watcher, spent: SpentTime) -> TuneupResult:
    if problems := [*missing_modules(config.model_dump()), *missing_in_techniques(config)]:
        raise ConfigError(problems)
    with opened_study(config, TUNEUP, TUNEUPS, launch, listener, (BaselineFailed,)) as place:
        with terminating_interrupts():
            findings = _measure(place, launch, listener, spent)
        with terminating_interrupts():  # Ray has taken SIGTERM for itself
            return _end(place, findings, launch, listener, spent)


def _lint(config: ExperimentConfig, listener: Watcher) -> list[str]:
    """Lint the model and the config, before any measurement, since measurements need free cores."""
    listener.stage("looking for faults")
    budget_seconds = (config.tuneup or TuneupConfig()).budget_seconds
    found = LintApart(config, min(TIMEOUT_SECONDS, LINT_SHARE * budget_seconds))
    try:
        told = [(each, f"{each.place}: {each.reason}; {each.hint}") for each in found.findings_at_best()]
    finally:
        found.end()
    for finding, text in told:
        listener.event("warning", {"code": finding.rule, "message": text})
    return [f"{finding.severity}: {coded(text, finding.rule)}" for finding, text in told]


def _measure(place: StudyPlace[TuneupFolder], launch: TuneupLaunch, listener: Watcher, spent: SpentTime) -> Findings:
    config, folder, log = place.config, place.folder, place.log
    notes = [*_report_earlier_launches(folder, log, listener), *place.notes, *_lint(config, listener)]
    clock = Clock((config.tuneup or TuneupConfig()).budget_seconds, 0.0, spent)
    with writable(folder.path):
        make_folder(folder.ray)
    with open_bench(config, TUNEUP, launch.address, launch.wait_seconds, folder.ray, listener) as bench:
        resumable, study = ResumableBench(bench, log, spent, TUNEUP, folder), scale_study_of(config, folder)
        shares_machines = config.scaling.num_workers > 0 and not is_private()
        return TuneupCourse(config, resumable, clock, listener, notes, study, shares_machines).run()


def scale_study_of(config: ExperimentConfig, folder: TuneupFolder) -> EarlierStudy | None:
    """Return the scale study that the tune-up follows. It is chosen by the first launch: a later one that followed
    another would try other techniques."""
    home, chosen = folder.path.parent, folder.read().get("scale_study")
    if chosen is None:
        found = earlier_study(config, home)
        with writable(folder.path):
            folder.write(scale_study="" if found is None else found.study_id)
        return found
    found = earlier_study(config, home, chosen) if chosen else None
    if chosen and found is None:
        message = f"scale study {chosen}, which this tune-up follows, is gone or damaged: {START_ANEW}"
        raise EnvironmentFault(message, TUNEUP.code, differing=["the scale study"])
    return found


def _report_earlier_launches(folder: TuneupFolder, log: JobLog, listener: Watcher) -> list[str]:
    """Report earlier launches to the listener, and return a note about them."""
    if not log.done:
        return []
    seconds = log.done[-1].elapsed
    listener.resumed(folder.run_id, seconds)
    return [f"what was measured in the first {seconds:.0f} s is that of an earlier launch, which had been interrupted"]


def _end(
    place: StudyPlace[TuneupFolder], findings: Findings, launch: TuneupLaunch, listener: Watcher, spent: SpentTime
) -> TuneupResult:
    config, folder = place.config, place.folder
    answer, text = answer_text(findings), recommended_yaml(config, findings)
    report = report_html(config.name, folder.run_id, findings, text, spent.exact)
    return end_study(
        place,
        TUNEUP,
        StudyAnswer(answer, answer, findings_json(findings), text, report),
        spent,
        listener,
        lambda record: record_in_mlflow(folder, record, findings, place.close_seconds),
        lambda end: TuneupResult(tuneup_id=folder.run_id, findings=findings, **vars(end)),
        launch.on_result,
    )
