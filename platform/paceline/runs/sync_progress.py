"""Reports the progress of `sync`."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

EVERY_SECONDS = 5.0
"""Seconds between reports of the progress."""


def ignore_progress(text: str) -> None:
    """Ignore a progress text."""


class SyncProgress:
    """Count the records that have been sent, and report that while sending continues.

    Args:
        records: number of records to send.
        patience_seconds: seconds that each record waits for MLflow without progress.
    """

    def __init__(self, records: int, patience_seconds: float, tell: Callable[[str], object] = ignore_progress) -> None:
        self._records = records
        self._patience_seconds = patience_seconds
        self._tell = tell
        self._done = self._sent = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync-progress", daemon=True)

    def __enter__(self) -> "SyncProgress":
        if self._records:
            wait = f"up to {self._patience_seconds:g} s without an answer"
            self._tell(f"sending {_counted(self._records)} ({wait}; importing MLflow takes some seconds)")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()

    def note(self, sent: int) -> None:
        """Count one record as done, and add the number of its entries that were sent."""
        with self._lock:
            self._done += 1
            self._sent += sent

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(EVERY_SECONDS):
            seconds = time.monotonic() - began
            self._tell(f"{self._done} of {_counted(self._records)}, {self._sent:,} entries sent … {seconds:.0f} s")


def _counted(records: int) -> str:
    return f"{records} record{'' if records == 1 else 's'}"
