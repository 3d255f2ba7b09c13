"""Uploads of a run's files to MLflow's artifact store, whose trouble holds up nothing else."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.redaction import redact
from paceline.tracking.backoff import Backoff
from paceline.tracking.journal import Entry
from paceline.tracking.mlflow_connection import is_refused
from paceline.tracking.mlflow_run import MlflowRun
from paceline.tracking.run_record import ARTIFACT_FOLDER
from paceline.tracking.upload_cursor import UploadCursor

logger = logging.getLogger(__name__)


def put_off(batch: Sequence[Entry], cursor: UploadCursor) -> None:
    """Have the cursor know which files the entries are about: they go last."""
    paths = [entry.content["path"] for entry in batch if entry.kind == "artifact"]
    cursor.deferred = list(dict.fromkeys([*cursor.deferred, *paths]))


class ArtifactUploads:
    """Sends the files that were put off. Used by the upload thread alone.

    Args:
        folder: the recorder's folder.
        save: writes the cursor down.
        refuse: is notified of a file that will never be sent, and why.
    """

    def __init__(self, folder: Path, save: Callable[[], object], refuse: Callable[[list[str]], object]) -> None:
        self._folder = folder / ARTIFACT_FOLDER
        self._save, self._refuse = save, refuse
        self.backoff = Backoff()
        self.error: str | None = None
        """The reason why files do not reach MLflow; None when they do."""

    def send(self, cursor: UploadCursor, remote: MlflowRun) -> None:
        """Send what is put off, unless that failed a moment ago; trouble is kept in `error`."""
        if self.backoff.wait_seconds:
            return
        trouble: Exception | None = None
        for path in list(cursor.deferred):
            try:
                reason = self._send_one(path, remote)
            except Exception as error:
                trouble = trouble or error
                continue
            if reason:
                self._refuse([f"artifact {path}: {reason}"])
            cursor.deferred.remove(path)
            self._save()
        if trouble is not None:
            self._failed(trouble)
            return
        if self.error:
            logger.info("files reach MLflow again, none is missing")
        self.backoff.succeeded()
        self.error = None

    def _send_one(self, path: str, remote: MlflowRun) -> str:
        """Send a file; returns why it will never be there, or nothing."""
        file = self._folder / path
        if not file.is_file():
            return f"the run's folder does not have the file any more: {file}"
        try:
            remote.log_artifact(file, path)
        except Exception as error:
            if not is_refused(error):
                raise
            return redact(str(error))[:300]
        return ""

    def _failed(self, error: Exception) -> None:
        self.backoff.failed()
        previous = self.error
        self.error = redact(f"files do not reach MLflow: {type(error).__name__}: {error}").strip()[:1000]
        if previous is None:
            logger.warning("files do not reach MLflow for now, they are kept in %s: %s", self._folder, self.error)
