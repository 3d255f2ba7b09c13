"""Uploads of many records in threads of this process."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import PacelineError, text_of
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.mlflow_probe import silence_of
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.uploads import WhenSent

logger = logging.getLogger(__name__)

MOST_FINISHING = 16
"""Records that are finished at the same time, at most. With more, each one would wait too long for its turn at a
database, and count as stuck. Any further one waits with its folder alone: a thread and an open journal take 100 KB,
and trials may end faster than MLflow takes their records, by hours in a sweep of thousands."""

ANSWER_SECONDS = 5.0
"""Time in which MLflow has to answer at all: this process may have a small part of a busy core."""
SILENT_SECONDS = 10.0
"""Time for which MLflow then counts as silent, for all records that it has never answered for: thousands may wait."""

AGAIN_SECONDS = 1.0
"""Time after which a record is begun again that could not be."""


@dataclass(frozen=True, eq=False)
class _Finishing:
    """A record that is over."""

    folder: Path
    uri: str
    patience_seconds: float
    when_sent: WhenSent
    is_new: bool


class UploadThreads:
    """`Uploads` in this process: a thread for each record that is being written, and some for those that are over."""

    trouble = None

    def __init__(self) -> None:
        self._uploaders: dict[Path, MlflowUploader] = {}
        self._finishing: dict[Path, _Finishing] = {}
        self._lacking: set[Path] = set()
        """Records that could not be begun yet."""
        self._is_over = False
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(MOST_FINISHING, "finish-upload")
        self._silences: dict[str, tuple[str, float]] = {}
        """By address, why nobody answers there, and until when that holds."""

    def begin(self, folder: Path, uri: str, is_new: bool = False) -> None:
        """Send what is recorded, see `Uploads`. One whose folder cannot be read is tried again in a while."""
        with self._lock:
            if self._is_over or folder in self._uploaders or folder in self._finishing:
                return
            try:
                uploader = _uploader(folder, uri, is_new)
            except Exception as error:  # of any kind: it is the trouble of one record
                if folder not in self._lacking:
                    logger.warning("%s is not sent to MLflow for now: %s", folder, unsent_for(error).error)
                self._lacking.add(folder)
                again = threading.Timer(AGAIN_SECONDS, self._begin_again, (folder, uri, is_new))
                again.daemon = True
                again.start()
                return
            self._lacking.discard(folder)
            self._uploaders[folder] = uploader
            uploader.start()

    def _begin_again(self, folder: Path, uri: str, is_new: bool) -> None:
        if folder in self._lacking:
            self.begin(folder, uri, is_new)

    def finish(
        self,
        folder: Path,
        uri: str,
        patience_seconds: float,
        when_sent: WhenSent,
        is_new: bool = False,
        is_awaited: bool = False,
    ) -> None:
        """Send what is left, see `Uploads`."""
        with self._lock:
            if self._is_over:
                return
            self._lacking.discard(folder)
            if not is_awaited and len(self._finishing) >= MOST_FINISHING and folder in self._uploaders:
                uploader = self._uploaders.pop(folder)
                uploader.abandon()
                is_new = is_new and uploader.is_new
            finishing = self._finishing[folder] = _Finishing(folder, uri, patience_seconds, when_sent, is_new)
            if is_awaited:
                threading.Thread(target=self._finish, args=(finishing,), daemon=True).start()
            else:
                self._threads.submit(self._finish, finishing)

    def abandon(self, folder: Path) -> None:
        """Send no more of a record, see `Uploads`; a request that is under way is not waited for."""
        with self._lock:
            self._lacking.discard(folder)
            self._finishing.pop(folder, None)
            uploader = self._uploaders.pop(folder, None)
        if uploader is not None:
            uploader.abandon()

    def stop(self) -> None:
        """Abandon all records, and begin no more, see `Uploads`."""
        with self._lock:
            self._is_over = True
            folders = [*self._uploaders, *self._finishing, *self._lacking]
        self._threads.shutdown(wait=False, cancel_futures=True)
        for folder in folders:
            self.abandon(folder)

    def _finish(self, finishing: _Finishing) -> None:
        try:
            report = self._send(finishing)
        # of any kind, SystemExit included: it is the trouble of one record, and somebody waits for its report
        except BaseException as error:
            report = unsent_for(error)
        with self._lock:
            is_wanted = self._finishing.get(finishing.folder) is finishing
            uploader = self._uploaders.pop(finishing.folder, None) if is_wanted else None
            if is_wanted:
                del self._finishing[finishing.folder]
        if uploader is not None:
            uploader.abandon()
        if is_wanted:
            finishing.when_sent(report)

    def _send(self, finishing: _Finishing) -> UploadReport:
        folder = finishing.folder
        uploader = self._uploaders.get(folder) or _uploader(folder, finishing.uri, finishing.is_new)
        with self._lock:
            if self._finishing.get(folder) is not finishing:
                return _unsent("it was abandoned")
            self._uploaders[folder] = uploader
        uploader.start()
        if uploader.report().run_id is None and (silence := self._silence_of(finishing.uri)) is not None:
            report = uploader.report()
            return replace(report, error=report.error or silence)
        return uploader.finish_patiently(finishing.patience_seconds)

    def _silence_of(self, uri: str) -> str | None:
        known, end = self._silences.get(uri, ("", 0.0))
        if time.monotonic() < end:
            return known
        silence = silence_of(uri, ANSWER_SECONDS)
        if silence is not None:
            self._silences[uri] = silence, time.monotonic() + SILENT_SECONDS
        return silence


def unsent_for(error: BaseException) -> UploadReport:
    """Return the report of a record that could not be sent, since something went wrong before."""
    kind = "" if isinstance(error, OSError | PacelineError) else f"{type(error).__name__}: "
    return _unsent(f"{kind}{text_of(error)}")


def _unsent(error: str) -> UploadReport:
    return UploadReport(None, None, None, 1, error)


def _uploader(folder: Path, uri: str, is_new: bool) -> MlflowUploader:
    journal = Journal(folder / JOURNAL_FILE)
    for _ in journal.scan():
        pass
    return MlflowUploader(folder, RunRecord.load(folder, uri), journal, is_new)
