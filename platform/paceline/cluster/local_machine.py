"""Memory and disk of this machine, or of the container that this process is in."""

from pathlib import Path

GIB = 2**30


def memory() -> tuple[int, int]:
    """Free and total bytes."""
    import psutil

    told = psutil.virtual_memory()
    free, total = told.available, told.total
    limit = _container_limit()
    if limit is not None and limit < total:
        free, total = min(free, limit), limit
    return free, total


def memory_text() -> str:
    """Such as `12.0 GiB of 16.0 GiB free`."""
    free, total = memory()
    return f"{free / GIB:.1f} GiB of {total / GIB:.1f} GiB free"


def existing(folder: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    absolute = folder.absolute()
    return next(place for place in (absolute, *absolute.parents) if place.exists())


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
