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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from paceline.process_end import end_with_starter
from paceline.tracking.backoff import Backoff
from paceline.tracking.journal import can_lock
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.upload_threads import UploadThreads, unsent_for
from paceline.tracking.uploads import WhenSent

logger = logging.getLogger(__name__)

NICENESS = 10
"""The process that trains has priority."""
LONGEST_RESTART_SECONDS = 300.0
"""Longest pause before a process that keeps dying is started again: each start costs seconds of a core."""
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""By default, glibc has eight arenas for each core, and keeps in each what was freed there: threads that come and go
would have the process grow with each record."""
_PROGRAM = (
    "import json, sys; start = json.loads(sys.stdin.buffer.readline()); sys.path[:] = start['path']; "
    "from paceline.tracking.uploader_process import main; main(start['starter'])"
)


def can_upload_in_own_process(folder: Path) -> bool:
    """Return True if a process of its own can upload the journal in a folder.

    There has to be a Python to start, which a program that embeds one may not have. And the file system has to have
    locks: either process may have to write a removed journal again.
    """
    return bool(sys.executable) and can_lock(folder)


@dataclass(frozen=True)
class Order:
    """A line to the process: a call of `Uploads`."""

    call: Literal["begin", "finish", "abandon"]
    folder: str
    uri: str = ""
    is_new: bool = False
    patience_seconds: float = 0.0

    def line(self) -> bytes:
        """Return it as the process reads it."""
        return _line(asdict(self))


class UploaderProcess:
    """`Uploads` in a process of its own, which is there from the first record until `stop`.

    It ends with this one, however that comes about. One that has died is started again, after a while, and given all
    records that are open; nothing is lost meanwhile, since it is safe in their journals.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[Order, WhenSent | None]] = {}
        """By folder, the last order."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Orders for the process, in the order in which they are to be written."""
        self._keeper: threading.Thread | None = None
        self._backoff = Backoff(LONGEST_RESTART_SECONDS)
        self._hurry = threading.Event()
        self._is_over = False
        self._lock = threading.RLock()
        self.trouble: str | None = None
        """Reason why there is no process; None when there is one, or none was needed yet."""

    def begin(self, folder: Path, uri: str, is_new: bool = False) -> None:
        """Send what is recorded, see `Uploads`."""
        self._order(Order("begin", str(folder.absolute()), uri, is_new))

    def finish(
        self, folder: Path, uri: str, patience_seconds: float, when_sent: WhenSent, is_new: bool = False
    ) -> None:
        """Send what is left, see `Uploads`."""
        self._order(Order("finish", str(folder.absolute()), uri, is_new, patience_seconds), when_sent)

    def hurry(self) -> None:
        """Have a process that has died started again at once, see `Uploads`."""
        self._hurry.set()

    def abandon(self, folder: Path) -> None:
        """Send no more of a record, see `Uploads`."""
        order = Order("abandon", str(folder.absolute()))
        with self._lock:
            if self._open.pop(order.folder, None) is not None:
                self._lines.put(order.line())

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

    def _order(self, order: Order, when_sent: WhenSent | None = None) -> None:
        with self._lock:
            if self._is_over:
                return
            self._open[order.folder] = order, when_sent
            self._lines.put(order.line())
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
            began, process = time.monotonic(), self._started()
            if process is not None:
                threading.Thread(target=_write, args=(process, self._lines), daemon=True).start()
                self._take_reports(process)
                code = process.wait()
                self._lines.put(None)  # the thread that writes to it ends
                if time.monotonic() - began > LONGEST_RESTART_SECONDS:
                    self._backoff.succeeded()
                if not self._is_over:
                    self._failed(f"the upload process ended with {code}")
            self._hurry.wait(self._backoff.wait_seconds)
            self._hurry.clear()

    def _started(self) -> "subprocess.Popen[bytes] | None":
        """Start the process, and have it given all that is open. None where it cannot be started."""
        try:
            process = _start()
        except OSError as error:
            self._failed(f"the upload process could not be started: {error}")
            return None
        with self._lock:
            self._process, self.trouble = process, None
            self._lines = queue.SimpleQueue()
            # an address may hold credentials: a command line can be read by everyone on the machine
            self._lines.put(_line({"path": sys.path, "starter": os.getpid()}))
            for order, _ in self._open.values():
                self._lines.put(order.line())
            if self._is_over:
                process.kill()
        return process

    def _failed(self, trouble: str) -> None:
        self._backoff.failed()
        self.trouble = trouble
        logger.warning("metrics do not reach MLflow for now, they are kept in the runs' folders: %s", trouble)

    def _take_reports(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.endswith(b"\n"):
                    self._take(json.loads(line))

    def _take(self, answer: Mapping[str, Any]) -> None:
        with self._lock:
            order, when_sent = self._open.get(answer["folder"], (None, None))
            if order is None or when_sent is None:
                return
            del self._open[order.folder]
        when_sent(UploadReport(**answer["report"]))


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


def main(starter: int) -> None:
    """Entry point of the process: follow the orders, and end when the starting process ends.

    Args:
        starter: its process id.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # a Ctrl-C in the terminal, and its end, are for the one that trains
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    end_with_starter(starter)  # should the pipe still be open somewhere
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # MLflow prints
    _follow(sys.stdin.buffer, answers)
    os._exit(0)  # the pipe has closed, wherever the uploads stand: whoever continues sends the rest


def _follow(orders: IO[bytes], answers: IO[bytes]) -> None:
    uploads, lock = UploadThreads(), threading.Lock()

    def answer_for(folder: str) -> Callable[[UploadReport], None]:
        def answer(report: UploadReport) -> None:
            with lock, contextlib.suppress(OSError):
                answers.write(_line({"folder": folder, "report": asdict(report)}))

        return answer

    for line in orders:
        order = Order(**json.loads(line))
        folder = Path(order.folder)
        if order.call == "finish":
            uploads.finish(folder, order.uri, order.patience_seconds, answer_for(order.folder), order.is_new)
        elif order.call == "abandon":
            uploads.abandon(folder)
        else:
            _begin(uploads, order)


def _begin(uploads: UploadThreads, order: Order) -> None:
    try:
        uploads.begin(Path(order.folder), order.uri, order.is_new)
    except Exception as error:  # of one record, which may have been removed
        logger.warning("%s is not sent to MLflow for now: %s", order.folder, unsent_for(error).error)
