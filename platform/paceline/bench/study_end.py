"""End of a study: its answer is written to its folder and to MLflow."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.bench.jobs import StudyKind
from paceline.bench.mlflow_record import record_of
from paceline.bench.resumable_bench import SpentTime
from paceline.bench.study_folder import StudyFolder
from paceline.bench.study_launch import StudyPlace
from paceline.bench.study_result import StudyResult
from paceline.cluster.listener import Stages
from paceline.cluster.run_folder import SUMMARY, folder_removed, writable
from paceline.cluster.train import unsent_text
from paceline.durable import write_durably
from paceline.errors import EnvironmentFault
from paceline.redaction import redact
from paceline.tracking.mlflow_probe import damage_of
from paceline.tracking.run_record import RunRecord
from paceline.tracking.tracking_uri import is_http
from paceline.tracking.upload_cursor import UploadReport

F = TypeVar("F", bound=StudyFolder)
R = TypeVar("R")


@dataclass(frozen=True)
class StudyAnswer:
    """Answer of a study, in the forms in which it is kept."""

    summary: str
    """One line, which lists of runs show."""
    text: str
    """One line with the recommended changes, which stands in an error where the answer cannot be written."""
    findings: Mapping[str, Any]
    """JSON values without secrets. `recommended` and `speedup` are among them."""
    recommended: str | None
    """The recommended config as YAML; None where no file can hold it."""
    report: bytes
    """The HTML file."""


def end_study(
    place: StudyPlace[F],
    study: StudyKind,
    answer: StudyAnswer,
    spent: SpentTime,
    listener: Stages,
    send: Callable[[RunRecord], UploadReport],
    result_of: Callable[[StudyResult], R],
    on_result: Callable[[R], object] | None,
) -> R:
    """Write the answer to the folder, record it in MLflow, and mark the study as finished.

    Args:
        send: sends the record to MLflow with what was found out.
        on_result: called with the result before the study counts as finished.

    Raises:
        EnvironmentFault: the folder cannot be written. The message has the answer.
    """
    with _not_lost(answer):
        _write(place.folder, study, answer)
        report = _recorded(place, study, listener, send)
    wall_seconds = spent.exact
    result = result_of(_result(place, answer, wall_seconds, report))
    if on_result is not None:
        on_result(result)
    with _not_lost(answer), writable(place.folder.path):
        place.folder.write(status="finished", wall_seconds=wall_seconds, **{SUMMARY: redact(answer.summary)})
    return result


def _write(folder: StudyFolder, study: StudyKind, answer: StudyAnswer) -> None:
    if folder.is_removed:
        raise folder_removed(study.noun, folder.path)
    with writable(folder.path):
        write_durably(folder.findings, json.dumps(answer.findings, indent=1).encode())
        if answer.recommended is not None:
            write_durably(folder.recommended, answer.recommended.encode())
        write_durably(folder.report, answer.report)
        folder.clear()


def _recorded(
    place: StudyPlace[F], study: StudyKind, listener: Stages, send: Callable[[RunRecord], UploadReport]
) -> UploadReport:
    """Record the study in MLflow; what cannot be sent is a warning."""
    listener.stage(f"recording the {study.noun} in MLflow")
    record = record_of(place.config, study, place.folder.run_id, place.uri)
    with writable(place.folder.path):
        report = send(record)
    if reason := report.error or damage_of(place.uri, report.run_id):
        listener.event("warning", {"code": "unsent", "message": unsent_text(reason, place.folder.path)})
    return report


def _result(place: StudyPlace[F], answer: StudyAnswer, wall_seconds: float, report: UploadReport) -> StudyResult:
    folder = place.folder
    return StudyResult(
        name=place.config.name,
        config=place.config,
        recommended_path=str(folder.recommended) if answer.recommended is not None else "",
        report_path=str(folder.report),
        folder=folder.path,
        wall_seconds=wall_seconds,
        mlflow_url=report.url,
        mlflow_run_id=report.run_id,
        needs_ui=not is_http(place.uri),
    )


@contextmanager
def _not_lost(answer: StudyAnswer) -> Iterator[None]:
    """Add the answer to the error if it cannot be written to the folder, so that it is not lost."""
    try:
        yield
    except EnvironmentFault as fault:
        message = f"{fault.message}; what was found out: {redact(answer.text)}"
        fields = {key: answer.findings[key] for key in ("recommended", "speedup")}
        raise EnvironmentFault(message, "findings-not-written", **fields) from fault
