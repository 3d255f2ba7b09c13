"""Memory use of trial steps, and the check that it leaves enough free.

Linux's files: https://docs.kernel.org/filesystems/proc.html (`status`, `clear_refs`) and
https://docs.kernel.org/admin-guide/cgroup-v2.html (`memory.max`, `memory.current`).
"""

import platform
import resource
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import psutil
import torch

from paceline.engine.dist_context import DistContext
from paceline.engine.meter import peak_memory_bytes

MARGIN = 0.1
"""Fraction of the memory that is left free, for fragmentation and for needs of training beyond the trial steps."""
PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


class Memory(Protocol):
    """Memory in which one rank's trial steps run."""

    def expects(self, size: int) -> bool:
        """Return True if steps with a micro batch of `size` samples may be tried."""

    def begin(self) -> None:
        """Prepare for trial steps, just before them."""

    def end(self, size: int, extra: int) -> None:
        """Measure the memory of trial steps, just after them and before it is released.

        Args:
            size: samples of the micro batch.
            extra: bytes that training needs beyond the trial steps.
        """

    def holds(self, size: int) -> bool:
        """Return True if the trial steps left enough memory free. Call it when all ranks have released theirs."""


def memory_of(ranks: DistContext) -> Memory:
    """Return the memory of this rank's device. Every rank must call it while no trial step runs."""
    sharers = count_sharers(ranks)
    return CudaMemory(ranks.device, sharers) if ranks.device.type == "cuda" else HostMemory(sharers)


def count_sharers(ranks: DistContext) -> int:
    """Return the number of ranks that share this one's memory (of a GPU, or of a machine), itself included."""
    place = platform.node()
    if ranks.device.type == "cuda":
        place += str(torch.cuda.get_device_properties(ranks.device).uuid)
    mine = float(int.from_bytes(sha256(place.encode()).digest()[:6]))  # 48 bits are exact in a float
    return sum(other == mine for (other,) in ranks.gather_numbers([mine]))


class CudaMemory:
    """Memory of a GPU. Running out of it raises an error, so every size may be tried."""

    def __init__(self, device: torch.device, sharers: int) -> None:
        self._device = device
        self._sharers = sharers
        self._peak = 0

    def expects(self, size: int) -> bool:
        return True

    def begin(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def end(self, size: int, extra: int) -> None:
        torch.cuda.synchronize(self._device)
        self._peak = torch.cuda.max_memory_reserved(self._device) + extra

    def holds(self, size: int) -> bool:
        free, total = torch.cuda.mem_get_info(self._device)
        # contexts and libraries of all processes, and other programs on the GPU
        others = total - free - torch.cuda.memory_reserved(self._device)
        return self._peak * self._sharers + others <= (1 - MARGIN) * total


class HostMemory:
    """Memory of a machine. The kernel kills a process that takes too much, so only sizes expected to fit are tried."""

    def __init__(self, sharers: int) -> None:
        self._before = psutil.Process().memory_info().rss
        self._limit = (1 - MARGIN) * available_bytes(sharers)
        self._taken: dict[int, int] = {}
        """Bytes taken at each size, beyond those that the process had before the search."""

    def expects(self, size: int) -> bool:
        """Return True if a line through the two next smaller sizes stays below the limit; also for the first two."""
        before = sorted(each for each in self._taken if each < size)[-2:]
        if len(before) < 2:
            return True
        (small, large), (less, more) = before, (self._taken[each] for each in before)
        slope = max(0.0, (more - less) / (large - small))
        return more + slope * (size - large) <= self._limit

    def begin(self) -> None:
        forget_peak()

    def end(self, size: int, extra: int) -> None:
        self._taken[size] = peak_memory_bytes(torch.device("cpu")) - self._before + extra

    def holds(self, size: int) -> bool:
        return self._taken[size] <= self._limit


def forget_peak() -> None:
    """Reset the peak of this process's resident memory. Where the system cannot do that, the peak only ever rises."""
    try:
        (PROCESS / "clear_refs").write_text("5")
    except OSError:
        return


def available_bytes(sharers: int) -> int:
    """Return the bytes that this process can still take: its share of the machine's memory and the control groups'.

    The limit of the process's own address space counts, too.

    Args:
        sharers: number of processes that share the machine's memory.
    """
    shared = min([psutil.virtual_memory().available, *below_cgroup_limits()])
    return max(0, min([shared // sharers, *_below_address_limit()]))


def _below_address_limit() -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and sys.platform == "linux":
        yield limit - psutil.Process().memory_info().vms


def below_cgroup_limits(cgroups: Path = CGROUPS, process: Path = PROCESS) -> Iterator[int]:
    """Yield the bytes that each control group of the process leaves free; nothing without limits."""
    for root, path in _memory_cgroups(cgroups, process):
        folder = root / path.lstrip("/")
        # in a container the path may be the host's, and the container's own group is mounted as the root
        for place in (folder, *folder.parents):
            if place.is_relative_to(root):
                yield from _below_limit(place)


def _memory_cgroups(cgroups: Path, process: Path) -> Iterator[tuple[Path, str]]:
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield cgroups, path
        elif "memory" in controllers.split(","):
            yield cgroups / "memory", path


def _below_limit(folder: Path) -> Iterator[int]:
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most != "max":
            yield int(most) - used + int(statistics.get(cache, 0))  # the kernel drops such pages when it needs room
