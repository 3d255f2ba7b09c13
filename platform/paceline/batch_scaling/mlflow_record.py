"""Record of a study in MLflow: one run, with a note that has the answer and the table, and the files."""

import json
import sys
import time

from paceline.batch_scaling.findings import ScaleFindings, findings_json
from paceline.batch_scaling.folder import ScaleFolder
from paceline.batch_scaling.texts import HEADING, critical_text, noise_text, rows_of, summary_text, time_text
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.redaction import redact
from paceline.tracking import metrics
from paceline.tracking.markdown import code, escaped
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.provenance import command_line, provenance
from paceline.tracking.run_record import RunRecord, flatten
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import UploadReport


def record_of(config: ExperimentConfig, scale_id: str, uri: str) -> RunRecord:
    """The record of a study's own run."""
    own = shareable(config)
    origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
    return RunRecord(
        run_id=scale_id,
        name=config.name,
        uri=uri,
        experiment=config.tracking.experiment or config.name,
        params=flatten(own.model_dump(mode="json", exclude={"sweep", "tuneup"})),
        tags={**origin.tags, metrics.KIND: "scale"},
        artifacts={"config.yaml": dump_yaml(own), **origin.artifacts},
        secrets=secrets_of(config),
        picture=False,
    )


def tell_mlflow(
    folder: ScaleFolder, record: RunRecord, findings: ScaleFindings, timeout_seconds: float
) -> UploadReport:
    """Record all that was found out, and send it; what is unsent at the time-out stays in the folder's journal."""
    recorder = RunRecorder(folder.tracking, record)
    now = int(time.time() * 1000)
    recorder.append([MetricPoint(key, value, 0, now) for key, value in figures(findings).items()])
    recorder.append([MetricPoint(metrics.SCALE_NOISE, point.value, point.samples, now) for point in findings.noise])
    recorder.add_artifact("findings.json", json.dumps(findings_json(findings), indent=1).encode())
    if folder.recommended.exists():
        recorder.add_artifact(folder.recommended.name, folder.recommended.read_bytes())
    return recorder.close("FINISHED", None, timeout_seconds, note_of(record.name, findings))


def figures(findings: ScaleFindings) -> dict[str, float]:
    """The metrics of a study's run."""
    found = findings_json(findings)
    named = {
        metrics.SCALE_CRITICAL_BATCH: found["critical_batch_size"],
        metrics.SCALE_SPEEDUP: found["speedup"],
        metrics.SCALE_SAMPLES_SPENT: float(findings.samples_spent),
    }
    return {key: value for key, value in named.items() if value is not None}


def note_of(name: str, findings: ScaleFindings) -> str:
    """The answer first, then the table, as Markdown."""
    parts = [f"## {escaped(name)}, scaled", f"**{escaped(summary_text(findings))}**"]
    if findings.recommended:
        changes = code("\n".join(f"{key}: {value}" for key, value in findings.recommended.items()))
        parts.append(f"Recommended changes (`recommended.yaml` among the artifacts has them all):\n\n{changes}")
    facts = {
        "target": findings.target.text,
        "critical batch": critical_text(findings.critical),
        "noise scale": noise_text(findings),
        "rule": findings.rules.text,
        "time to the target": time_text(findings),
    }
    parts.append("\n".join(f"- {label}: {escaped(text)}" for label, text in facts.items() if text))
    rows = [HEADING, *rows_of(findings)]
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    parts.append("\n".join([lines[0], "|---" * len(HEADING) + "|", *lines[1:]]))
    parts += [f"- {escaped(note)}" for note in findings.notes]
    return redact("\n\n".join(parts))
