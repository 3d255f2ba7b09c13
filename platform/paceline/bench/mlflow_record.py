"""Record of a study in MLflow: one run with its metrics and files, and a note that shows the pictures among them."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.bench.jobs import StudyKind
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_probe import SILENT_SECONDS, silence_of
from paceline.tracking.provenance import command_line, provenance
from paceline.tracking.run_record import RunRecord, flatten
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import UploadReport

POLL_SECONDS = 0.1
LEAST_CLOSE_SECONDS = 1.0
_SECTIONS = {"sweep", "scale", "tuneup"}


def record_of(config: ExperimentConfig, study: StudyKind, run_id: str, uri: str) -> RunRecord:
    """The record of a study's own run."""
    own = shareable(config)
    origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
    return RunRecord(
        run_id=run_id,
        name=config.name,
        uri=uri,
        experiment=config.tracking.experiment or config.name,
        params=flatten(own.model_dump(mode="json", exclude=_SECTIONS - {study.section})),
        tags={**origin.tags, metrics.KIND: study.section},
        artifacts={"config.yaml": dump_yaml(own), **origin.artifacts},
        secrets=secrets_of(config),
        picture=False,
    )


def send(
    tracking: Path,
    record: RunRecord,
    points: Sequence[MetricPoint],
    files: Mapping[str, bytes],
    note_of: Callable[[str], str],
    timeout_seconds: float,
) -> UploadReport:
    """Record a study that has ended, and send it; what is unsent at the time-out stays in the folder's journal.

    Args:
        tracking: folder of the journal.
        files: artifacts by name.
        note_of: returns the note, as Markdown, for MLflow's id of the run; the id is empty where it is not known.
    """
    recorder = RunRecorder(tracking, record)
    recorder.append(points)
    for name, content in files.items():
        recorder.add_artifact(name, content)
    begun = time.monotonic()
    note = note_of(_id_in_mlflow(recorder, record.uri, timeout_seconds))
    left = max(LEAST_CLOSE_SECONDS, timeout_seconds - (time.monotonic() - begun))
    return recorder.close("FINISHED", None, left, note)


def _id_in_mlflow(recorder: RunRecorder, uri: str, timeout_seconds: float) -> str:
    """MLflow's id of the run, which comes with the first sending; empty where that fails, or takes too long."""
    recorder.start_uploading()
    end = time.monotonic() + (timeout_seconds if silence_of(uri, SILENT_SECONDS) is None else 0.0)
    while (report := recorder.report()).run_id is None and report.error is None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return report.run_id or ""
