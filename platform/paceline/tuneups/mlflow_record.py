"""Record of a tune-up in MLflow: one run, with a note that has the table, and the files."""

import json
import sys
import time

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.markdown import code, escaped, pictures_part
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_probe import silence_of
from paceline.tracking.provenance import command_line, provenance
from paceline.tracking.run_record import RunRecord, flatten
from paceline.tracking.run_recorder import SILENT_SECONDS, RunRecorder
from paceline.tracking.upload_cursor import UploadReport
from paceline.tuneups.answer import certainty, changes_text, headline
from paceline.tuneups.explanations import rows_of
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.outcome import Findings
from paceline.tuneups.pictures import PICTURES, drawn_pictures, files_of
from paceline.tuneups.stored_findings import findings_json
from paceline.tuneups.texts import HEADING

POLL_SECONDS = 0.1
LEAST_CLOSE_SECONDS = 1.0


def record_of(config: ExperimentConfig, tuneup_id: str, uri: str) -> RunRecord:
    """The record of a tune-up's own run."""
    own = shareable(config)
    origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
    return RunRecord(
        run_id=tuneup_id,
        name=config.name,
        uri=uri,
        experiment=config.tracking.experiment or config.name,
        params=flatten(own.model_dump(mode="json", exclude={"sweep"})),
        tags={**origin.tags, metrics.KIND: "tuneup"},
        artifacts={"config.yaml": dump_yaml(own), **origin.artifacts},
        secrets=secrets_of(config),
        picture=False,
    )


def tell_mlflow(folder: TuneupFolder, record: RunRecord, findings: Findings, timeout_seconds: float) -> UploadReport:
    """Record all that was found out, and send it; what is unsent at the time-out stays in the folder's journal."""
    recorder = RunRecorder(folder.tracking, record)
    now = int(time.time() * 1000)
    recorder.append([MetricPoint(key, value, 0, now) for key, value in figures(findings).items()])
    recorder.add_artifact("findings.json", json.dumps(findings_json(findings), indent=1).encode())
    for name, picture in files_of(findings).items():
        recorder.add_artifact(name, picture)
    for file in (folder.recommended, folder.report):
        if file.exists():
            recorder.add_artifact(file.name, file.read_bytes())
    begun = time.monotonic()
    note = note_of(record.name, findings, _id_in_mlflow(recorder, record.uri, timeout_seconds))
    left = max(LEAST_CLOSE_SECONDS, timeout_seconds - (time.monotonic() - begun))
    return recorder.close("FINISHED", None, left, note)


def _id_in_mlflow(recorder: RunRecorder, uri: str, timeout_seconds: float) -> str:
    """MLflow's id of the run, which comes with the first sending; empty where that fails, or takes too long."""
    recorder.start_uploading()
    end = time.monotonic() + (timeout_seconds if silence_of(uri, SILENT_SECONDS) is None else 0.0)
    while (report := recorder.report()).run_id is None and report.error is None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return report.run_id or ""


def figures(findings: Findings) -> dict[str, float]:
    """The metrics of a tune-up's run."""
    values = {metrics.speedup_metric(technique.name): technique.speedup for technique in findings.techniques}
    values[metrics.TUNEUP_SPEEDUP] = findings.speedup
    values |= {metrics.split_metric(part): share for part, share in findings.split.items()}
    values |= {metrics.recommended_split_metric(part): share for part, share in findings.recommended_split.items()}
    return {key: value for key, value in values.items() if value is not None}


def note_of(name: str, findings: Findings, run_id: str = "") -> str:
    """The answer first, then the table and the pictures, as Markdown.

    Args:
        run_id: MLflow's id of the run; without it the pictures are named, and not shown.
    """
    parts = [f"## {escaped(name)}, tuned", f"**{escaped(headline(findings))}**"]
    if findings.recommended:
        changes = code(changes_text(findings))
        parts.append(f"Recommended changes (`recommended.yaml` among the artifacts has them all):\n\n{changes}")
    parts.append(escaped(certainty(findings)))
    parts.append(_table(findings))
    parts.append(pictures_part({name: PICTURES[name] for name in drawn_pictures(findings)}, run_id))
    parts += [f"- {escaped(note)}" for note in findings.notes]
    return redact("\n\n".join(part for part in parts if part))


def _table(findings: Findings) -> str:
    rows = [HEADING, *rows_of(findings)]
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(HEADING) + "|", *lines[1:]])
