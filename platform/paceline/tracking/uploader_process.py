"""Uploads records from a separate, low-priority process, for one that trains, or that answers those that do.

MLflow is seconds of pure Python to import, and some milliseconds at each request: in this process, all of it would hold
up what that is for. What the other one finds out about a record stands in its cursor's file; how an upload ended, it
reports.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from paceline.errors import text_of
from paceline.process_end import end_with_starter
from paceline.tracking.backoff import Backoff
from paceline.tracking.journal import can_lock
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.upload_threads import UploadThreads
from paceline.tracking.uploads import WhenSent

logger = logging.getLogger(__name__)

NICENESS = 10
"""The process that trains has priority."""
LONGEST_RESTART_SECONDS = 300.0
"""Longest pause before a process that keeps dying is started again: each start costs seconds of a core."""
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""By default, glibc has eight arenas for each core, and keeps in each what was freed there: threads that come and go
would have the process grow with each record."""
_MARK = b"paceline-sent "
"""Beginning of a report, wherever in a line: something else may print while the process starts."""
_PROGRAM = """
import json, os, sys
reports = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is imported may print
start = json.loads(sys.stdin.buffer.readline())
sys.path[:] = start["path"]
from paceline.tracking.uploader_process import main
main(start["starter"], reports)
"""


def can_upload_in_own_process(folder: Path) -> bool:
    """Return True if a process of its own can upload the journal in a folder.

    There has to be a Python to start, which a program that embeds one may not have. And the file system has to have
    locks: either process may have to write a removed journal again.
    """
    return bool(sys.executable) and can_lock(folder)


@dataclass(frozen=True)
class UploadCall:
    """A line to the process: a call of `Uploads`."""

    method: Literal["begin", "finish", "abandon"]
    folder: str
    uri: str = ""
    is_new: bool = False
    patience_seconds: float = 0.0
    is_awaited: bool = False

    def line(self) -> bytes:
        """Return it as the process reads it."""
        return _line(asdict(self))

    @classmethod
    def read(cls, line: bytes) -> "UploadCall":
        """Read what `line` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class SentRecord:
    """A line from the process: the report of a record that was finished."""

    folder: str
    report: UploadReport

    def line(self) -> bytes:
        """Return it as the starting process reads it."""
        return _MARK + _line(asdict(self))

    @classmethod
    def read(cls, line: bytes) -> "SentRecord":
        """Read what `line` wrote.

        Raises:
            ValueError: there is none in it.
        """
        _, mark, report = line.partition(_MARK)
        if not mark:
            raise ValueError(f"no report of a record: {line!r}")
        content = json.loads(report)
        return cls(content["folder"], UploadReport(**content["report"]))


class UploaderProcess:
    """`Uploads` in a process of its own, which is there from the first record until `stop`.

    It ends with this one, however that comes about. One that has died is started again, after a while, and given all
    records that are open; nothing is lost meanwhile, since it is safe in their journals.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[UploadCall, WhenSent | None]] = {}
        """By folder, the last call."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Calls for the process, in the order in which they are to be written."""
        self._keeper: threading.Thread | None = None
        self._backoff = Backoff(LONGEST_RESTART_SECONDS)
        self._hurry = threading.Event()
        self._is_over = False
        self._lock = threading.RLock()
        self.trouble: str | None = None
        """Reason why there is no process; None when there is one, or none was needed yet."""

    def begin(self, folder: Path, uri: str, is_new: bool = False) -> None:
        """Send what is recorded, see `Uploads`."""
        self._call(UploadCall("begin", str(folder.absolute()), uri, is_new))

    def finish(
        self,
        folder: Path,
        uri: str,
        patience_seconds: float,
        when_sent: WhenSent,
        is_new: bool = False,
        is_awaited: bool = False,
    ) -> None:
        """Send what is left, see `Uploads`. If it is awaited, a process that has died is started again at once."""
        call = UploadCall("finish", str(folder.absolute()), uri, is_new, patience_seconds, is_awaited)
        self._call(call, when_sent)
        if is_awaited:
            self._hurry.set()

    def abandon(self, folder: Path) -> None:
        """Send no more of a record, see `Uploads`."""
        call = UploadCall("abandon", str(folder.absolute()))
        with self._lock:
            if self._open.pop(call.folder, None) is not None:
                self._lines.put(call.line())

    def stop(self) -> None:
        """Abandon all records, and end the process at once."""
        with self._lock:
            self._is_over = True
            self._open.clear()
            self._lines.put(None)
            self._hurry.set()
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _call(self, call: UploadCall, when_sent: WhenSent | None = None) -> None:
        with self._lock:
            known = self._open.get(call.folder)
            if self._is_over or (known is not None and known[0].method == "finish" and call.method == "begin"):
                return
            self._open[call.folder] = call, when_sent
            self._lines.put(call.line())
            if self._keeper is None:
                keeper = threading.Thread(target=self._keep, name="paceline-uploads", daemon=True)
                try:
                    keeper.start()
                except RuntimeError as error:
                    self._failed(f"a thread could not be started: {error}")
                else:
                    self._keeper = keeper

    def _keep(self) -> None:
        """Start the process, take its reports, and start it again should it end."""
        while not self._is_over:
            began = time.monotonic()
            try:
                trouble = self._run_once()
            except Exception as error:  # of any kind: whoever waits for a report would wait in vain
                trouble = f"the upload process could not be started: {text_of(error) or type(error).__name__}"
            if self._is_over:
                return
            if time.monotonic() - began > LONGEST_RESTART_SECONDS:
                self._backoff.succeeded()
            self._failed(trouble)
            self._hurry.wait(self._backoff.wait_seconds)
            self._hurry.clear()

    def _run_once(self) -> str:
        """Run the process, and take its reports until it ends; return why it did.

        Raises:
            OSError, RuntimeError: there is no room for a process or a thread.
        """
        process = _start()
        try:
            lines = self._give_all_to(process)
            threading.Thread(target=_write, args=(process, lines), daemon=True).start()
            self._take_reports(process)
            return f"the upload process ended with {process.wait()}"
        finally:
            process.kill()
            process.wait()
            self._lines.put(None)  # the thread that writes to it ends

    def _give_all_to(self, process: "subprocess.Popen[bytes]") -> "queue.SimpleQueue[bytes | None]":
        """Take a process into use: it is given all that is open, and what comes then."""
        path = [each for each in sys.path if isinstance(each, str)]
        with self._lock:
            lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            # an address may hold credentials: a command line can be read by everyone on the machine
            lines.put(_line({"path": path, "starter": os.getpid()}))
            for call, _ in self._open.values():
                lines.put(call.line())
            self._process, self._lines, self.trouble = process, lines, None
            if self._is_over:
                process.kill()
        return lines

    def _failed(self, trouble: str) -> None:
        self._backoff.failed()
        self.trouble = trouble
        logger.warning("metrics do not reach MLflow for now, they are kept in the runs' folders: %s", trouble)

    def _take_reports(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    self._take(SentRecord.read(line))

    def _take(self, sent: SentRecord) -> None:
        with self._lock:
            _, when_sent = self._open.get(sent.folder, (None, None))
            if when_sent is None:
                return
            del self._open[sent.folder]
        when_sent(sent.report)


def _start() -> "subprocess.Popen[bytes]":
    """Start a process that waits for a line with its path and its starter, to call `main`."""
    command = [sys.executable, "-P", "-c", _PROGRAM]
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _write(process: "subprocess.Popen[bytes]", lines: "queue.SimpleQueue[bytes | None]") -> None:
    """Write to a process what there is: in a thread, since one that was stopped takes no more at some time."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended: the next one is given all again
        while (line := lines.get()) is not None:
            process.stdin.write(line)
            process.stdin.flush()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def main(starter: int, reports: int) -> None:
    """Entry point of the process: follow the calls, and end when the starting process ends.

    Args:
        starter: its process id.
        reports: file descriptor for the reports.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # a Ctrl-C in the terminal, and its end, are for the one that trains
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    end_with_starter(starter)  # should the pipe still be open somewhere
    _follow(sys.stdin.buffer, os.fdopen(reports, "wb", buffering=0))
    os._exit(0)  # the pipe has closed, wherever the uploads stand: whoever continues sends the rest


def _follow(calls: IO[bytes], reports: IO[bytes]) -> None:
    uploads, lock = UploadThreads(), threading.Lock()

    def reporter_of(folder: str) -> WhenSent:
        def report(report: UploadReport) -> None:
            with lock, contextlib.suppress(OSError):
                reports.write(SentRecord(folder, report).line())

        return report

    for line in calls:
        call = UploadCall.read(line)
        folder = Path(call.folder)
        if call.method == "begin":
            uploads.begin(folder, call.uri, call.is_new)
        elif call.method == "abandon":
            uploads.abandon(folder)
        else:
            when_sent = reporter_of(call.folder)
            uploads.finish(folder, call.uri, call.patience_seconds, when_sent, call.is_new, call.is_awaited)
