"""A folder in an object store: list, read, write, remove. Transient faults are retried for a while.

The only file that imports pyarrow, once a store is opened.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from paceline import limited_wait
from paceline.durable import write_all
from paceline.private_files import open_private
from paceline.storage.address import StoreAddress
from paceline.storage.store_faults import StoreFault, fault_of, is_final, silence
from paceline.tracking.backoff import Backoff

PATIENCE_SECONDS = 8.0
"""Time for which a request that failed is tried again."""
LONGEST_SECONDS = 5.0
"""The longest pause between two attempts."""
PROBE_SECONDS = 10.0
"""Time that a store may take to show that it can be used."""
CHUNK_BYTES = 8 << 20
"""Part of a file that is in memory at once."""
MAX_COPY_BYTES = 5 << 30
"""Largest file that S3 copies in one request."""

CONNECT_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""A request fails after so long without any answer."""
ATTEMPTS = 2
"""Attempts of pyarrow itself; what is worth waiting for is tried again by `RemoteFolder`."""
HASTY_SECONDS = 3.0
"""`SILENT_SECONDS` of a probe, for which each request is tried once."""

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
        """Return the same folder with another patience."""
        return RemoteFolder(self.address, seconds, self._opened)

    def files(self) -> dict[str, int]:
        """Return the size in bytes of each file below it, by its path from here; empty when it is not there."""
        return self._try(_files_below)

    def folders(self) -> list[str]:
        """Return the names of the folders in it, sorted; without hidden ones."""
        found = self._try(_folders_in)
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when it is not there."""

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
        """Write a file of any size, of which only a part is in memory.

        Raises:
            OSError: the file cannot be read.
        """

        def upload(store: Any, place: str) -> None:
            with file.open("rb") as source, store.open_output_stream(f"{place}/{name}") as stream:
                while chunk := _of_this_machine(file, lambda: source.read(CHUNK_BYTES)):
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
                    open(file, "wb", buffering=0, opener=open_private) as copy,
                ):
                    while chunk := source.read(CHUNK_BYTES):
                        _of_this_machine(file, partial(write_all, copy.fileno(), chunk))
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
                if _is_file(store, source):
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
                # a local file's error has a name in it, see `_of_this_machine`; pyarrow's has none
                if isinstance(error, OSError) and error.filename is not None:
                    raise
                if is_final(error) or time.monotonic() + backoff.wait_seconds >= deadline:
                    raise fault_of(self.address, error) from None
                time.sleep(backoff.wait_seconds)


def _of_this_machine(file: Path, action: Callable[[], Result]) -> Result:
    """Put the name of a file into an error of reading or writing it, which has none by itself."""
    try:
        return action()
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


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
                self._store = open_store(self._address, self._hasty)
            return self._store


def within(seconds: float, action: Callable[[], Result], address: StoreAddress) -> Result:
    """Return the result of an action, unless that takes longer: pyarrow's requests cannot be cancelled.

    Raises:
        StoreFault: it took longer, or the store cannot be used.
    """
    try:
        return limited_wait.within(seconds, action, "store-probe")
    except (StoreFault, KeyboardInterrupt, SystemExit):
        raise
    except limited_wait.TooSlow:
        raise silence(address, seconds) from None
    except BaseException as error:
        raise fault_of(address, error) from error


def open_store(address: StoreAddress, hasty: bool = False) -> Any:
    """Return pyarrow's file system. May ask the network in which region a bucket is.

    Args:
        hasty: for a first look: a store that does not answer is not waited for.

    Raises:
        OSError: the store does not tell.
        ValueError: pyarrow does not take the address.
    """
    if address.scheme == "s3":
        return _open_s3(address.pinned(), hasty)
    from pyarrow.fs import FileSystem

    return FileSystem.from_uri(str(address))[0]


def _open_s3(address: StoreAddress, hasty: bool) -> Any:
    from pyarrow import fs

    options = address.options
    return fs.S3FileSystem(
        region=options.get("region") or fs.resolve_s3_region(address.bucket),
        endpoint_override=options.get("endpoint_override"),
        scheme=options.get("scheme"),
        connect_timeout=CONNECT_SECONDS,
        request_timeout=HASTY_SECONDS if hasty else SILENT_SECONDS,
        # in the background the parts of a large file would all be in memory at once
        background_writes=False,
        # a small file is one request then, rather than three
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1 if hasty else ATTEMPTS),
    )


def _files_below(file_system: Any, place: str) -> dict[str, int]:
    """Return the size in bytes of each file below a place, by its path from there."""
    from pyarrow.fs import FileSelector, FileType

    found = file_system.get_file_info(FileSelector(place, allow_not_found=True, recursive=True))
    cut = len(place) + 1
    return {info.path[cut:]: info.size for info in found if info.type == FileType.File and len(info.path) > cut}


def _is_file(file_system: Any, place: str) -> bool:
    """Return True if there is a file at a place."""
    from pyarrow.fs import FileType

    return bool(file_system.get_file_info(place).type == FileType.File)


def _folders_in(file_system: Any, place: str) -> list[str]:
    """Return the names of the folders in a place."""
    from pyarrow.fs import FileSelector, FileType

    found = file_system.get_file_info(FileSelector(place, allow_not_found=True))
    return [info.base_name for info in found if info.type == FileType.Directory]
