"""Sends to MLflow what is left of a run's record once its recorder is gone."""

from pathlib import Path

from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadReport


def sync(folder: Path, uri: str | None = None, patience_seconds: float = 30.0) -> UploadReport:
    """Send to MLflow what a run's recorder could not. For a run that is not running any more.

    What MLflow has lost, or another store does not have yet, is sent again; there is nothing that it would have twice.

    Args:
        folder: the recorder's folder.
        uri: MLflow's address; by default the one that the run was started with, less its credentials.
        patience_seconds: how long to wait for MLflow when nothing gets on.
    """
    journal = Journal(folder / JOURNAL_FILE)
    for _ in journal.scan():
        pass
    uploader = MlflowUploader(folder, RunRecord.load(folder, uri), journal)
    uploader.start()
    report = uploader.finish_patiently(patience_seconds)
    journal.close()
    return report
