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
"""Interval at which the keeper looks whether somebody waits."""
BYTES_PER_SECOND = 1 << 20
"""A long record is copied less often, so that it takes no more than this of the network."""
AGAIN_SECONDS = 3.0
"""Interval at which a copy that failed is tried again."""
END_SECONDS = 20.0
"""Time that the end of a run waits for a store that cannot be used. Its last checkpoint has been waited for by then."""
LEAVE_SECONDS = 3.0
"""`END_SECONDS` of a command that is ended at once."""

Tell = Callable[[str], object]


class KeptCopy(Protocol):
    """Copy of a record in a store. Its methods raise StoreFault and OSError."""

    @property
    def journal_bytes(self) -> int:
        """Size of what is copied as a whole whenever it has changed."""

    def is_wanted(self) -> bool:
        """Return True if somebody waits for something to be in the store."""

    def is_behind(self) -> bool:
        """Return True if something has changed since it was last copied."""

    def push_wanted(self) -> None:
        """Copy what somebody waits for."""

    def push(self) -> None:
        """Copy what has changed."""


class RunKeeper:
    """A thread of the driver's.

    Args:
        run: what is kept.
        status: the run's own file, which is copied at the end: what is finished there has all of its record there.
        copy: of its record.
        lease: that is held.
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
        self._thread = threading.Thread(target=self._run, name="store-keeper", daemon=True)

    @property
    def lost(self) -> str:
        """Why this process may work on the run no longer; empty while it may."""
        return self._lost

    def start(self) -> None:
        """Begin to copy and to hold the lease."""
        self._thread.start()

    def settle(self, tell: Tell) -> None:
        """The run has ended: copy all of its record, then its status. What could not be copied is reported."""
        reason = self._end(END_SECONDS)
        if reason:
            tell(f"the run's record is not all in its store: {reason}; the same command, on this machine, resumes it")

    def release(self) -> None:
        """Let others work on the name. What is not copied yet is copied if that is quickly done."""
        if not self._trouble:
            self._end(LEAVE_SECONDS)
        self._over.set()
        with suppress(RuntimeError):
            self._thread.join(LEAVE_SECONDS)
        with suppress(StoreFault):
            Lease(RemoteFolder(self.run.home, 0.0), self.run.launch).release()

    def _run(self) -> None:
        copied = held = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            pause = max(INTERVAL_SECONDS, self._copy.journal_bytes / BYTES_PER_SECOND)
            if self._trouble:
                pause = AGAIN_SECONDS
            if now - held >= RENEW_SECONDS:
                held = now
                self._attempt(self._hold)
            if now - copied >= pause:
                self._attempt(self._push)
                copied = time.monotonic()
            elif not self._trouble:
                self._attempt(self._push_wanted)

    def _push_wanted(self) -> None:
        if self._copy.is_wanted():
            self._copy.push_wanted()

    def _push(self) -> None:
        if not self._lost and (self._copy.is_wanted() or self._copy.is_behind()):
            self._copy.push()

    def _hold(self) -> None:
        self._lease.require()
        self._lease.renew()

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do something, and remember why it did not work."""
        try:
            with self._working:
                action()
        except LeaseLost as error:
            self._lost = self._trouble = error.message
        except (StoreFault, OSError) as error:
            self._trouble = text_of(error)
        else:
            self._trouble = self._lost

    def _end(self, seconds: float) -> str:
        """Copy what is left, and try again for so long; why it is not all there, or nothing."""
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
