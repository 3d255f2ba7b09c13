"""Opens an object store with pyarrow. The only file that imports it."""

from typing import Any

from paceline.storage.address import StoreAddress

CONNECT_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""How long a store may say nothing at all before a request has failed."""
ATTEMPTS = 2
"""How often pyarrow itself tries a request; what is worth waiting for is tried again by us."""
HASTY_SECONDS = 3.0
"""The same for a first look, for which each request is tried once."""


def open_store(address: StoreAddress, hasty: bool = False) -> tuple[Any, str]:
    """pyarrow's file system, and the place in it. May ask the network in which region a bucket is.

    Args:
        hasty: for a first look: a store that does not answer is not waited for.

    Raises:
        OSError: the store does not tell.
        ValueError: pyarrow does not take the address.
    """
    if address.scheme == "s3":
        return _open_s3(address.pinned(), hasty), address.place
    from pyarrow.fs import FileSystem

    file_system, place = FileSystem.from_uri(str(address))
    return file_system, place.rstrip("/")


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


def files_below(file_system: Any, place: str) -> dict[str, int]:
    """Size in bytes of each file below a place, by its path from there."""
    from pyarrow.fs import FileSelector, FileType

    found = file_system.get_file_info(FileSelector(place, allow_not_found=True, recursive=True))
    cut = len(place) + 1
    return {info.path[cut:]: info.size for info in found if info.type == FileType.File and len(info.path) > cut}


def is_file(file_system: Any, place: str) -> bool:
    """Return True if there is a file at a place."""
    from pyarrow.fs import FileType

    return bool(file_system.get_file_info(place).type == FileType.File)


def folders_in(file_system: Any, place: str) -> list[str]:
    """Names of the folders in a place."""
    from pyarrow.fs import FileSelector, FileType

    found = file_system.get_file_info(FileSelector(place, allow_not_found=True))
    return [info.base_name for info in found if info.type == FileType.Directory]
