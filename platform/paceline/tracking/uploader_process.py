"""Uploads a journal from a separate, low-priority process, for a process that trains.

MLflow is seconds of pure Python to import, and some milliseconds at each request: in the process that trains, all of
it would hold up the training. That process says only when to end; what the other one finds out stands in the cursor's
file.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.process_end import end_with_starter
from paceline.tracking.backoff import Backoff
from paceline.tracking.journal import JOURNAL_FILE, Journal, can_lock
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, UploadReport, report_of

logger = logging.getLogger(__name__)

NICENESS = 10
"""The process that trains has priority."""
LONGEST_RESTART_SECONDS = 300.0
"""Longest pause before a process that keeps dying is started again: each start costs seconds of a core."""
FINISH = "finish\n"
_PROGRAM = (
    "import json, sys; order = json.loads(sys.stdin.readline()); sys.path[:] = order['path']; "
    "from paceline.tracking.uploader_process import main; main(order)"
)


def can_upload_in_own_process(folder: Path) -> bool:
    """Return True if a process of its own can upload the journal in a folder.

    There has to be a Python to start, which a program that embeds one may not have. And the file system has to have
    locks: either process may have to write a removed journal again.
    """
    return bool(sys.executable) and can_lock(folder)


class UploaderProcess:
    """The part of a `MlflowUploader` in the process that trains."""

    def __init__(self, folder: Path, record: RunRecord, journal: Journal) -> None:
        self._folder = folder
        self._record = record
        self._journal = journal
        self._process: subprocess.Popen[str] | None = None
        self._backoff = Backoff(LONGEST_RESTART_SECONDS)
        self._trouble: str | None = None
        """Reason why there is no process; None when there is one, or none was needed yet."""
        self._began = 0.0
        self._is_over = self._is_complete = False
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the process, which ends with this one, however that comes about.

        A second call only looks after it: one that has died is started again, after a while. Never raises: what it
        would have sent is safe in the journal.
        """
        with self._lock:
            if not self._is_over and not self._is_alive() and not self._backoff.wait_seconds:
                self._begin()

    def rest(self) -> None:
        """Do nothing: the process has no others to wait for."""

    def finish(self, timeout_seconds: float) -> UploadReport:
        """Send what is left, wait for it no longer than the timeout, and end the process."""
        if self._process is not None or self._trouble is not None:
            self._finish(timeout_seconds)
        report = self.report()
        if self._is_over and not self._is_complete and report.error is None:
            return replace(report, error=f"not everything was sent within {timeout_seconds:g} s")
        return report

    def abandon(self) -> None:
        """End the process at once, and for good."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                _close_pipe(self._process)

    def report(self) -> UploadReport:
        """Return the progress that the process has last written down."""
        if not self._is_over:
            self._is_alive()
        cursor = UploadCursor.load(self._folder / CURSOR_FILE)
        return report_of(cursor, self._record.uri, self._journal, self._trouble or cursor.error or None)

    def _finish(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        self._backoff.hurry()
        while not self._is_over:
            self.start()
            self._send_command(FINISH)
            seconds = max(0.0, deadline - time.monotonic())
            if (process := self._process) is None:
                time.sleep(min(seconds, self._backoff.wait_seconds))
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._is_complete = process.wait(seconds) == 0
            self._is_alive()
            if self._is_complete or time.monotonic() >= deadline:
                self.abandon()

    def leave(self) -> bool:
        """End the process at once; returns False, since it may have created the run in MLflow."""
        self.abandon()
        return False

    def _is_alive(self) -> bool:
        """Return True if there is a process; takes note of one that has ended by itself."""
        with self._lock:
            if self._process is None:
                return False
            code = self._process.poll()
            if code is None:
                return True
            _close_pipe(self._process)
            self._process = None
            if time.monotonic() - self._began > LONGEST_RESTART_SECONDS:
                self._backoff.succeeded()
            if code != 0 and not self._is_over:
                self._failed(f"the upload process ended with {code}")
            return False

    def _begin(self) -> None:
        # the address may hold credentials: a command line can be read by everyone on the machine
        order = {
            "path": sys.path,
            "folder": str(self._folder.absolute()),
            "uri": self._record.uri,
            "starter": os.getpid(),
        }
        try:
            self._process = _start()
        except OSError as error:
            self._failed(f"the upload process could not be started: {error}")
            return
        self._trouble, self._began = None, time.monotonic()
        self._send_command(json.dumps(order) + "\n")

    def _failed(self, trouble: str) -> None:
        self._backoff.failed()
        self._trouble = trouble
        logger.warning("metrics do not reach MLflow for now, they are kept in %s: %s", self._journal.path, trouble)

    def _send_command(self, text: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died, or ended: the report tells what is left
            self._process.stdin.write(text)
            self._process.stdin.flush()


def _start() -> "subprocess.Popen[str]":
    """Start a process that waits for an order to pass to `main`."""
    command = [sys.executable, "-P", "-c", _PROGRAM]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _close_pipe(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def main(order: Mapping[str, Any]) -> None:
    """Entry point of the process: upload until the order to finish, and end when the starting process ends."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a Ctrl-C in the terminal, and its end, are for the one that trains
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    folder = Path(order["folder"])
    uploader = MlflowUploader(folder, RunRecord.load(folder, order["uri"]), Journal(folder / JOURNAL_FILE))
    uploader.start()
    end_with_starter(order["starter"])  # should the pipe still be open somewhere
    for line in sys.stdin:
        if line == FINISH:
            threading.Thread(target=_finish, args=(uploader,), daemon=True).start()
    os._exit(1)  # the pipe has closed, wherever the upload stands: whoever continues sends the rest


def _finish(uploader: MlflowUploader) -> None:
    uploader.finish(threading.TIMEOUT_MAX)
    os._exit(0)
