"""A folder in an object store: list, read, write, remove. Transient faults are retried for a while."""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from paceline.private_files import open_private
from paceline.storage.address import StoreAddress
from paceline.storage.filesystem import files_below, folders_in, is_file, open_store
from paceline.storage.store_faults import StoreFault, fault_of, is_final, silence
from paceline.tracking.backoff import Backoff

PATIENCE_SECONDS = 8.0
"""How long something is tried again that did not work."""
LONGEST_SECONDS = 5.0
"""The longest pause between two attempts."""
PROBE_SECONDS = 10.0
"""How long a store may take to show that it can be used."""
CHUNK_BYTES = 8 << 20
"""How much of a file is in memory at once."""
MAX_COPY_BYTES = 5 << 30
"""Largest file that S3 copies in one request."""

Result = TypeVar("Result")


class RemoteFolder:
    """A folder in an object store. Opened at the first use; may be used by several threads.

    All methods raise a `StoreFault` when the store cannot be used, but where a file that is not there is no fault.

    Args:
        patience_seconds: how long something is tried again that did not work; by default `PATIENCE_SECONDS`.
    """

    def __init__(
        self, address: StoreAddress, patience_seconds: float | None = None, opened: "_Opened | None" = None
    ) -> None:
        self.address = address
        self.patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._opened = opened or _Opened(address)

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(self.address / name, self.patience_seconds, self._opened)

    def patient(self, seconds: float) -> "RemoteFolder":
        """The same with another patience."""
        return RemoteFolder(self.address, seconds, self._opened)

    def files(self) -> dict[str, int]:
        """Size in bytes of each file below it, by its path from here; empty when it is not there."""
        return self._try(lambda store, place: files_below(store, place))

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted; without hidden ones."""
        found = self._try(lambda store, place: folders_in(store, place))
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None when it is not there."""

        def read(store: Any, place: str) -> bytes | None:
            try:
                with store.open_input_stream(f"{place}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

        return self._try(read)

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place, over an older one: readers see the old content or the new."""

        def write(store: Any, place: str) -> None:
            with store.open_output_stream(f"{place}/{name}") as stream:
                stream.write(data)

        self._try(write)

    def upload(self, name: str, file: Path) -> None:
        """The same with a file of any size, of which only a part is in memory.

        Raises:
            OSError: the file cannot be read.
        """

        def upload(store: Any, place: str) -> None:
            with file.open("rb") as source, store.open_output_stream(f"{place}/{name}") as stream:
                while chunk := source.read(CHUNK_BYTES):
                    stream.write(chunk)

        self._try(upload)

    def download(self, name: str, file: Path) -> None:
        """Copy a file from there, over an older one.

        Raises:
            FileNotFoundError: it is not there.
        """

        def download(store: Any, place: str) -> bool:
            try:
                with (
                    store.open_input_stream(f"{place}/{name}") as source,
                    open(file, "wb", opener=open_private) as copy,
                ):
                    while chunk := source.read(CHUNK_BYTES):
                        copy.write(chunk)
            except FileNotFoundError:
                return False
            return True

        if not self._try(download):
            raise FileNotFoundError(f"{(self.address / name).bare} is not there")

    def copy(self, name: str, target: "RemoteFolder", size_bytes: int) -> None:
        """Copy a file into another folder of the same store, over an older one; the store does it where it can.

        Raises:
            FileNotFoundError: it is not there.
        """

        def copy(store: Any, place: str) -> bool:
            source, copied = f"{place}/{name}", f"{target.address.place}/{name}"
            try:
                if size_bytes <= MAX_COPY_BYTES:
                    store.copy_file(source, copied)
                    return True
                with store.open_input_stream(source) as stream, store.open_output_stream(copied) as written:
                    while chunk := stream.read(CHUNK_BYTES):
                        written.write(chunk)
            except OSError:  # each store says in its own way that there is no such file
                if is_file(store, source):
                    raise
                return False
            return True

        if not self._try(copy):
            raise FileNotFoundError(f"{(self.address / name).bare} is not there")

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no fault."""

        def remove(store: Any, place: str) -> None:
            with suppress(FileNotFoundError):
                store.delete_file(f"{place}/{name}")

        self._try(remove)

    def remove_all(self) -> None:
        """Remove all that is below it."""

        def remove_all(store: Any, place: str) -> None:
            with suppress(FileNotFoundError):
                store.delete_dir(place)

        self._try(remove_all)

    def probe(self, seconds: float = PROBE_SECONDS) -> None:
        """Find out whether it can be listed, written to and removed from; leaves nothing behind.

        Raises:
            StoreFault: it cannot, or does not answer in so many seconds.
        """
        name = f".probe-{secrets.token_hex(4)}"
        here = RemoteFolder(self.address, 0.0, _Opened(self.address, hasty=True))

        def look() -> None:
            here.folders()
            here.write(name, b"probe")
            here.remove(name)

        within(seconds, look, self.address)

    def _try(self, action: Callable[[Any, str], Result]) -> Result:
        deadline = time.monotonic() + self.patience_seconds
        backoff = Backoff(LONGEST_SECONDS)
        while True:
            try:
                return action(self._opened.store(), self.address.place)
            except (OSError, ValueError) as error:
                backoff.failed()
                # a local file's error has a name in it, pyarrow's has none
                if isinstance(error, OSError) and error.filename is not None:
                    raise
                if is_final(error) or time.monotonic() + backoff.wait_seconds >= deadline:
                    raise fault_of(self.address, error) from None
                time.sleep(backoff.wait_seconds)


class _Opened:
    """pyarrow's file system of a store, opened once for all folders in it."""

    def __init__(self, address: StoreAddress, hasty: bool = False) -> None:
        self._address = address
        self._hasty = hasty
        self._lock = threading.Lock()
        self._store: Any = None

    def store(self) -> Any:
        with self._lock:
            if self._store is None:
                self._store, _ = open_store(self._address, self._hasty)
            return self._store


def within(seconds: float, action: Callable[[], Result], address: StoreAddress) -> Result:
    """What the action gives, unless that takes longer: requests of pyarrow's cannot be broken off.

    Raises:
        StoreFault: it took longer, or the store cannot be used.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="store-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0] if isinstance(errors[0], StoreFault) else fault_of(address, errors[0])
    if not results:
        raise silence(address, seconds)
    return results[0]
