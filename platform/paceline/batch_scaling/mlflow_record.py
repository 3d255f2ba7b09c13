"""Record of a study in MLflow: one run, with a note that has the answer and the table, and the files."""

import json
import time
from functools import partial

from paceline.batch_scaling.answer import changes_text
from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.folder import ScaleFolder
from paceline.batch_scaling.pictures import PICTURES, drawn_pictures, files_of
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.texts import HEADING, critical_text, noise_text, rows_of, summary_text, time_text
from paceline.bench.mlflow_record import send
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.markdown import code, escaped, pictures_part, table
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadReport


def record_in_mlflow(
    folder: ScaleFolder, record: RunRecord, findings: ScaleFindings, timeout_seconds: float
) -> UploadReport:
    """Record all that was found out, and send it; what is unsent at the time-out stays in the folder's journal."""
    now = int(time.time() * 1000)
    points = [MetricPoint(key, value, 0, now) for key, value in figures(findings).items()]
    points += [MetricPoint(metrics.SCALE_NOISE, point.value, point.samples, now) for point in findings.noise]
    found = json.dumps(findings_json(findings), indent=1).encode()
    files = {folder.findings.name: found, **files_of(findings), **folder.outputs()}
    return send(folder.tracking, record, points, files, partial(note_of, record.name, findings), timeout_seconds)


def figures(findings: ScaleFindings) -> dict[str, float]:
    """The metrics of a study's run."""
    found = findings_json(findings)
    named = {
        metrics.SCALE_CRITICAL_BATCH: found["critical_batch_size"],
        metrics.SCALE_SPEEDUP: found["speedup"],
        metrics.SCALE_SAMPLES_SPENT: float(findings.samples_spent),
    }
    return {key: value for key, value in named.items() if value is not None}


def note_of(name: str, findings: ScaleFindings, run_id: str = "") -> str:
    """The answer first, then the table and the pictures, as Markdown.

    Args:
        run_id: MLflow's id of the run; without it the pictures are named, and not shown.
    """
    parts = [f"## {escaped(name)}, scaled", f"**{escaped(summary_text(findings))}**"]
    if findings.recommended:
        changes = code(changes_text(findings))
        parts.append(f"Recommended changes (`recommended.yaml` among the artifacts has them all):\n\n{changes}")
    facts = {
        "target": findings.target.text,
        "critical batch": critical_text(findings.critical),
        "noise scale": noise_text(findings),
        "rule": findings.rules.text,
        "time to the target": time_text(findings),
    }
    parts.append("\n".join(f"- {label}: {escaped(text)}" for label, text in facts.items() if text))
    parts.append(table(HEADING, rows_of(findings)))
    parts.append(pictures_part({name: PICTURES[name] for name in drawn_pictures(findings)}, run_id))
    parts += [f"- {escaped(note)}" for note in findings.notes]
    return redact("\n\n".join(part for part in parts if part))
