"""Uploads of records by others than their recorders: in threads that many records share, or in another process."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paceline.tracking.journal import Journal
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, UploadReport, report_of

WhenSent = Callable[[UploadReport], object]


class Uploads(Protocol):
    """Sends records to MLflow, each from its recorder's folder. May be called from any thread; nothing waits.

    A record is named by its folder. `uri` is MLflow's address. `is_new` is True if the run was never begun before, see
    `RunRecorder`; whether it was sent since stands in the folder.
    """

    @property
    def trouble(self) -> str | None:
        """Reason why nothing is sent at present; None where that is not so."""

    def begin(self, folder: Path, uri: str, is_new: bool = False) -> None:
        """Send what is recorded, and what is still to come, until `finish`. Never raises."""

    def finish(
        self,
        folder: Path,
        uri: str,
        patience_seconds: float,
        when_sent: WhenSent,
        is_new: bool = False,
        is_awaited: bool = False,
    ) -> None:
        """Send what is left, once it is the record's turn, and report that.

        Args:
            patience_seconds: time to wait for MLflow when nothing gets on.
            when_sent: is called in some other thread, unless the record is abandoned before.
            is_awaited: True if somebody waits for it, so that it does not wait for its turn.
        """

    def abandon(self, folder: Path) -> None:
        """Send no more of a record, and report nothing."""

    def stop(self) -> None:
        """Abandon all records, and begin no more."""


class RecordUpload:
    """A recorder's part in the upload of its record by others, in place of a `MlflowUploader`."""

    def __init__(
        self,
        uploads: Uploads,
        folder: Path,
        record: RunRecord,
        journal: Journal,
        is_new: bool = False,
        is_alone: bool = False,
    ) -> None:
        """Args:
        is_new: as for `Uploads`.
        is_alone: True if the uploads are for this record alone, so that they are stopped with it.
        """
        self._is_alone = is_alone
        self._uploads = uploads
        self._folder = folder
        self._record = record
        self._journal = journal
        self._is_new = is_new
        self._is_begun = self._is_over = False
        self._last_report: UploadReport | None = None

    def start(self) -> None:
        """Have the record sent; a second call does nothing."""
        if not self._is_begun and not self._is_over:
            self._is_begun = True
            self._uploads.begin(self._folder, self._record.uri, self._is_new)

    def finish(self, timeout_seconds: float) -> UploadReport:
        """Have sent what is left, and wait for it no longer than the timeout.

        A second call only reports, and so does one without `start`.
        """
        if self._is_begun and not self._is_over:
            self._last_report = self._finish(timeout_seconds)
            self.abandon()
        return self._last_report or self.report()

    def _finish(self, timeout_seconds: float) -> UploadReport:
        reports: list[UploadReport] = []
        is_sent = threading.Event()

        def when_sent(report: UploadReport) -> None:
            reports.append(report)
            is_sent.set()

        self._uploads.finish(self._folder, self._record.uri, timeout_seconds, when_sent, self._is_new, is_awaited=True)
        is_sent.wait(timeout_seconds)
        if reports:
            return reports[0]
        report = self.report()
        return replace(report, error=report.error or f"not everything was sent within {timeout_seconds:g} s")

    def abandon(self) -> None:
        """Have no more sent."""
        self._is_over = True
        if self._is_alone:
            self._uploads.stop()
        else:
            self._uploads.abandon(self._folder)

    def report(self) -> UploadReport:
        """Return the progress that was last written down."""
        cursor = UploadCursor.load(self._folder / CURSOR_FILE)
        return report_of(cursor, self._record.uri, self._journal, self._uploads.trouble or cursor.error or None)
