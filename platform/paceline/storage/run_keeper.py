"""Keeps a run's record in its object store up to date while the run continues, and holds its lease."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from paceline.errors import text_of
from paceline.storage.address import RunStore
from paceline.storage.lease import RENEW_SECONDS, Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost, StoreFault

INTERVAL_SECONDS = 5.0
"""Interval at which changes are copied, unless somebody waits for them."""
LOOK_SECONDS = 0.1
"""Interval at which the keeper checks whether somebody waits."""
BYTES_PER_SECOND = 1 << 20
"""Maximum network use in bytes per second: a long record is copied less often."""
AGAIN_SECONDS = 3.0
"""Interval at which a failed copy is retried."""
END_SECONDS = 20.0
"""Time that the end of a run waits for a store that cannot be used. Its last checkpoint has been waited for by then."""
LEAVE_SECONDS = 3.0
"""`END_SECONDS` of a command that is ended at once."""

Tell = Callable[[str], object]


class KeptCopy(Protocol):
    """Copy of a record in a store. Its methods raise StoreFault and OSError."""

    @property
    def journal_bytes(self) -> int:
        """Size in bytes of the files that are copied as a whole whenever they change."""

    def is_wanted(self) -> bool:
        """Return True if somebody waits for files to be in the store."""

    def is_behind(self) -> bool:
        """Return True if something has changed since it was last copied."""

    def push_wanted(self) -> None:
        """Copy the files that somebody waits for."""

    def push(self) -> None:
        """Copy everything that has changed."""


class RunKeeper:
    """Two threads in the driver: one copies the record, however long that takes, and one renews the lease.

    Args:
        run: the run in the store.
        status: the run's status file, copied last: a run that is finished in the store has its whole record there.
        copy: the copy of the run's record.
        lease: the lease to renew.
    """

    def __init__(self, run: RunStore, status: Path, copy: KeptCopy, lease: Lease) -> None:
        self.run = run
        self._remote = RemoteFolder(run.address)
        self._status = status
        self._status_there = b""
        self._copy = copy
        self._lease = lease
        self._lost = ""
        self._trouble = ""
        self._over = threading.Event()
        self._working = threading.Lock()
        self._thread = threading.Thread(target=self._copy_changes, name="store-keeper", daemon=True)
        self._holder = threading.Thread(target=self._hold, name="lease", daemon=True)

    @property
    def lost(self) -> str:
        """Reason why this process has to stop working on the run; empty while it may continue."""
        return self._lost

    def start(self) -> None:
        """Begin to copy and to hold the lease."""
        self._thread.start()
        self._holder.start()

    def settle(self, tell: Tell) -> None:
        """Copy the whole record of the ended run, then its status. Reports a failure to copy."""
        reason = self._end(END_SECONDS)
        if reason:
            hint = "" if self._lost else "; the same command, on this machine, resumes it"
            tell(f"the run's record is not all in its store: {reason}{hint}")

    def release(self) -> None:
        """Release the lease, so that others can use the run's name. Copies the rest first if that takes little time."""
        if not self._trouble:
            self._end(LEAVE_SECONDS)
        self._over.set()
        for thread in (self._thread, self._holder):
            with suppress(RuntimeError):  # it was not started
                thread.join(LEAVE_SECONDS)
        with suppress(StoreFault):
            Lease(RemoteFolder(self.run.home, 0.0), self.run.launch).release()

    def _copy_changes(self) -> None:
        copied = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            pause = max(INTERVAL_SECONDS, self._copy.journal_bytes / BYTES_PER_SECOND)
            if self._trouble:
                pause = AGAIN_SECONDS
            if time.monotonic() - copied >= pause:
                self._attempt(self._push)
                copied = time.monotonic()
            elif not self._trouble:
                self._attempt(self._push_wanted)

    def _push_wanted(self) -> None:
        if self._copy.is_wanted():
            self._lease.require()  # this machine may have slept, or been cut off
            self._copy.push_wanted()

    def _push(self) -> None:
        if not self._lost and (self._copy.is_wanted() or self._copy.is_behind()):
            self._lease.require()
            self._copy.push()

    def _hold(self) -> None:
        while not self._lost and not self._over.wait(RENEW_SECONDS):
            try:
                self._lease.require()
                self._lease.renew()
                if self._over.is_set():  # it was released meanwhile
                    self._lease.release()
            except LeaseLost as error:
                self._lost = self._trouble = error.message
            except Exception:  # of any kind: it is tried again, and the other thread reports it
                continue

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run an action, and remember the reason if it fails."""
        try:
            with self._working:
                action()
        except LeaseLost as error:
            self._lost = self._trouble = error.message
        except Exception as error:  # of any kind: without this thread, nothing would be copied any more
            self._trouble = text_of(error)
        else:
            self._trouble = self._lost

    def _end(self, seconds: float) -> str:
        """Copy the rest and retry for `seconds`; return the reason if something is still missing, else empty text."""
        deadline = time.monotonic() + seconds
        while True:
            self._attempt(self._finish)
            if not self._trouble or self._lost or time.monotonic() + AGAIN_SECONDS > deadline:
                return self._trouble
            time.sleep(AGAIN_SECONDS)

    def _finish(self) -> None:
        self._lease.require()
        if self._copy.is_behind():
            self._copy.push()
        data = self._status.read_bytes()
        if data != self._status_there:
            self._remote.write(self._status.name, data)
            self._status_there = data
