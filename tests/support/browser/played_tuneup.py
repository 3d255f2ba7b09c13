"""A tune-up as `paceline tuneup` leaves it, with findings that are made up, and markup in all names."""

import json
from pathlib import Path

from paceline.bench.mlflow_record import record_of
from paceline.bench.study_launch import claim_study
from paceline.config.experiment import validate
from paceline.tuneups.folder import TUNEUP, TUNEUPS
from paceline.tuneups.mlflow_record import record_in_mlflow
from paceline.tuneups.stored_findings import findings_json
from support.browser.played_run import hostile
from support.tuneup.findings import findings

CLOSE_SECONDS = 120.0


def play_tuneup(storage: Path, uri: str) -> tuple[Path, str, str]:
    """Leave its folder behind, and its run in MLflow; returns the folder, and MLflow's ids of experiment and run.

    Args:
        uri: of a store that is there.
    """
    config = validate({"name": "tuned", "model": {"name": "mlp"}, "data": {"name": "synthetic"}})
    claimed = claim_study(TUNEUPS, config, storage)
    found, folder = findings(hostile("technique")), claimed.folder
    folder.findings.write_text(json.dumps(findings_json(found)))
    folder.recommended.write_text(f"# {hostile('reason')}\nname: tuned\n")
    report = record_in_mlflow(folder, record_of(config, TUNEUP, folder.run_id, uri), found, CLOSE_SECONDS)
    assert (report.unsent, report.error) == (0, None)
    folder.write(status="finished", wall_seconds=473.0)
    claimed.release()
    assert report.url is not None
    return folder.path, report.url.partition("/experiments/")[2].partition("/")[0], str(report.run_id)
