"""How much memory trial steps took, and whether that leaves enough.

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
"""Share of the memory that is left free: for fragmentation, and for what training needs beside the trial steps."""
PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


class Memory(Protocol):
    """The memory that one rank's trial steps are made in."""

    def expects(self, size: int) -> bool:
        """Whether steps at a micro batch of `size` samples may be tried."""

    def begin(self) -> None:
        """Trial steps are about to begin."""

    def end(self, size: int, extra: int) -> None:
        """They came to their end; training needs `extra` bytes more. What they took must not be released yet."""

    def holds(self, size: int) -> bool:
        """Whether what they took leaves enough. To be called when all ranks have released it."""


def memory_of(ranks: DistContext) -> Memory:
    """The memory of this rank's device. Every rank must call it, at rest."""
    sharers = count_sharers(ranks)
    return CudaMemory(ranks.device, sharers) if ranks.device.type == "cuda" else HostMemory(sharers)


def count_sharers(ranks: DistContext) -> int:
    """The ranks that use the same memory as this one, itself included: a GPU's, or a machine's."""
    place = platform.node()
    if ranks.device.type == "cuda":
        place += str(torch.cuda.get_device_properties(ranks.device).uuid)
    mine = float(int.from_bytes(sha256(place.encode()).digest()[:6]))  # 48 bits are exact in a float
    return sum(other == mine for (other,) in ranks.gather_numbers([mine]))


class CudaMemory:
    """A GPU's: running out raises, so every size may be tried."""

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
        # contexts and libraries of all processes, and whatever else computes there
        others = total - free - torch.cuda.memory_reserved(self._device)
        return self._peak * self._sharers + others <= (1 - MARGIN) * total


class HostMemory:
    """A machine's: the kernel kills whoever takes too much, so a size is tried only when it is expected to fit."""

    def __init__(self, sharers: int) -> None:
        self._before = psutil.Process().memory_info().rss
        self._limit = (1 - MARGIN) * available_bytes(sharers)
        self._taken: dict[int, int] = {}
        """Bytes that were taken at a size, beyond what the process had before the search."""

    def expects(self, size: int) -> bool:
        """Whether the line through the two sizes before stays below the limit; the first two are tried as they are."""
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
    """Let the peak of this process's resident memory start again; where there is no way to, it only ever rises."""
    try:
        (PROCESS / "clear_refs").write_text("5")
    except OSError:
        return


def available_bytes(sharers: int) -> int:
    """Memory that this process can still take: its part of the machine's and the control groups', within its own limit.

    Args:
        sharers: processes that the machine's memory is for.
    """
    shared = min([psutil.virtual_memory().available, *below_cgroup_limits()])
    return max(0, min([shared // sharers, *_below_address_limit()]))


def _below_address_limit() -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and sys.platform == "linux":
        yield limit - psutil.Process().memory_info().vms


def below_cgroup_limits(cgroups: Path = CGROUPS, process: Path = PROCESS) -> Iterator[int]:
    """What each control group that the process is in leaves it; without limits, nothing is yielded."""
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
