"""The lease on a name in an object store: a small file with its holder and expiry, renewed meanwhile.

Best effort: a store without conditional writes cannot do better. Two that ask at the same moment see each other after
`SETTLE_SECONDS`, and the one that wrote last continues. A run that was not heard of for `LEASE_SECONDS` may be taken
over; it finds that out before it puts the next checkpoint in place, and ends.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.storage.address import StoreAddress
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost, StoreFault

FILE = ".lease.json"
LEASE_SECONDS = 90.0
"""A holder that was not heard of for so long has lost its lease."""
RENEW_SECONDS = 20.0
SETTLE_SECONDS = 0.3
LOOK_SECONDS = 2.0
"""Interval at which a launch that waits looks at the lease again."""


@dataclass(frozen=True)
class Holder:
    """The process that works on a name."""

    launch: str
    machine: str
    """The machine since it was started, and the part of it whose processes see each other."""
    process: int
    began: str
    """Start of the process, in the machine's own count."""
    host: str
    until: float
    """Seconds since 1970, by the holder's clock."""

    @classmethod
    def here(cls, launch: str) -> "Holder":
        """Return this process, with a new expiry."""
        process = os.getpid()
        return cls(launch, _machine(), process, _began(process), socket.gethostname(), time.time() + LEASE_SECONDS)

    @property
    def is_gone(self) -> bool:
        """True if it is a process of this machine that has ended."""
        return self.machine == _machine() and _began(self.process) != self.began


class Lease:
    """The lease of a launch on a name."""

    def __init__(self, home: RemoteFolder, launch: str) -> None:
        self._home = home
        self._launch = launch

    def take(self, tell: Callable[[str], object]) -> None:
        """Take the lease once nobody else holds it; a holder that is not heard of any more is waited out.

        Args:
            tell: is called with what is waited for.

        Raises:
            StoreFault: another one works on the name.
        """
        self._wait_out(tell)
        self.renew()
        time.sleep(SETTLE_SECONDS)
        self.require()

    def renew(self) -> None:
        """Write the lease with a new expiry."""
        self._home.write(FILE, json.dumps(asdict(Holder.here(self._launch))).encode())

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease every `RENEW_SECONDS` in a thread, while the body copies what may take longer than the lease.

        Raises:
            LeaseLost: another launch took the lease in spite of that, while the store could not be reached.
            StoreFault: the store cannot be reached at the end.
        """
        over = threading.Event()

        def renew() -> None:
            while not over.wait(RENEW_SECONDS):
                with suppress(StoreFault):  # is tried again
                    try:
                        self.require()
                    except LeaseLost:
                        return
                    self.renew()

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        self.require()

    def require(self) -> None:
        """Check that this launch still has the lease.

        Raises:
            LeaseLost: another one works on the name by now, or has done so and has given the lease back.
        """
        data = self._home.read(FILE)
        if data is None:
            raise LeaseLost(
                f"the lease on {self._home.address.bare} was removed: another process may have taken over and ended "
                f"since, if nothing had been heard of this one for {LEASE_SECONDS:g} s. What this one has computed "
                "since is not kept; the same command resumes what is in the store",
                "lease-lost",
            )
        holder = _holder_in(data)
        if holder is not None and holder.launch != self._launch:
            raise LeaseLost(
                f"{self._home.address.bare} was taken over by process {holder.process} on {holder.host}, since nothing "
                f"had been heard of this one for {LEASE_SECONDS:g} s; what it has computed since is not kept",
                "lease-lost",
                host=holder.host,
                process=holder.process,
            )

    def release(self) -> None:
        """Give the lease back."""
        holder = read_holder(self._home)
        if holder is not None and holder.launch == self._launch:
            self._home.remove(FILE)

    def _wait_out(self, tell: Callable[[str], object]) -> None:
        first = holder = read_holder(self._home)
        deadline = None if first is None else time.monotonic() + min(LEASE_SECONDS, first.until - time.time())
        if first is not None and first.machine == _machine() and not first.is_gone:
            raise self._in_use(first)  # whatever its lease says: it lives
        while holder is not None and deadline is not None and not holder.is_gone and time.monotonic() < deadline:
            # a machine whose clock is behind may have said so just now
            if holder != first:
                raise self._in_use(holder)
            if holder is first:
                left = f"{deadline - time.monotonic():.0f} s"
                tell(f"waiting up to {left} for {holder.host}, which may still be at work on {self._home.address.name}")
            time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            holder = read_holder(self._home)

    def _in_use(self, holder: Holder) -> StoreFault:
        return StoreFault(
            f"a run named {self._home.address.name!r} is in progress in {self._home.address.bare}, by process "
            f"{holder.process} on {holder.host}; wait for it, or give this one another name",
            "run-in-use",
            name=self._home.address.name,
            host=holder.host,
            process=holder.process,
        )


def read_holder(home: RemoteFolder) -> Holder | None:
    """Return the holder of the lease on a name; None where there is none."""
    data = home.read(FILE)
    return None if data is None else _holder_in(data)


def _holder_in(data: bytes) -> Holder | None:
    """Return the holder that a lease's file names; None for a damaged file."""
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError):
        return None


def is_held(home: StoreAddress, launch: str) -> bool:
    """Return True if a launch works on a name, as far as the store says."""
    holder = read_holder(RemoteFolder(home))
    return holder is not None and holder.launch == launch and not holder.is_gone and holder.until > time.time()


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _began(process: int) -> str:
    """Return the start of a process; empty when it has ended."""
    try:
        # behind the name, which may have blanks and brackets in it
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
