"""Record of a tune-up in MLflow: one run, with a note that has the table, and the files."""

import json
import time
from functools import partial

from paceline.bench.mlflow_record import send
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.markdown import code, escaped, pictures_part, table
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadReport
from paceline.tuneups.answer import certainty, changes_text, headline
from paceline.tuneups.explanations import rows_of
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.outcome import Findings
from paceline.tuneups.pictures import PICTURES, drawn_pictures, files_of
from paceline.tuneups.stored_findings import findings_json
from paceline.tuneups.texts import HEADING


def record_in_mlflow(
    folder: TuneupFolder, record: RunRecord, findings: Findings, timeout_seconds: float
) -> UploadReport:
    """Record all that was found out, and send it; what is unsent at the time-out stays in the folder's journal."""
    now = int(time.time() * 1000)
    points = [MetricPoint(key, value, 0, now) for key, value in figures(findings).items()]
    found = json.dumps(findings_json(findings), indent=1).encode()
    files = {folder.findings.name: found, **files_of(findings), **folder.outputs()}
    return send(folder.tracking, record, points, files, partial(note_of, record.name, findings), timeout_seconds)


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
    parts.append(table(HEADING, rows_of(findings)))
    parts.append(pictures_part({name: PICTURES[name] for name in drawn_pictures(findings)}, run_id))
    parts += [f"- {escaped(note)}" for note in findings.notes]
    return redact("\n\n".join(part for part in parts if part))
