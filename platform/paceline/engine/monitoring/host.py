"""Metrics of a machine's cores, memory, disk and network, in MLflow's names and units."""

import multiprocessing
import os
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

HOST_METRICS = (
    "cpu_utilization_percentage",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
    "disk_usage_percentage",
    "disk_usage_megabytes",
    "disk_available_megabytes",
    "network_receive_megabytes",
    "network_transmit_megabytes",
)
"""Names of a machine's metrics, as in `mlflow.system_metrics`; `tracking.metrics` describes them."""
MEGA = 1e6


class CoreTimes(NamedTuple):
    """Seconds that the machine's cores have spent since it was started, all cores together."""

    busy: float
    """Seconds that were not idle, including those stolen by other virtual machines on the same hardware."""
    all: float


def core_times() -> CoreTimes:
    """Read the present times; takes 0.1 ms."""
    times: Any = psutil.cpu_times()
    # a guest's time is in its host's user time as well
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CoreTimes(everything - times.idle - getattr(times, "iowait", 0.0), everything)


def own_core_seconds() -> float:
    """Return the core seconds of this process and of its loader processes, including those that have ended."""
    children = multiprocessing.active_children()  # first: processes that have ended by now are in the times below
    total = sum(os.times()[:4])  # of this process, and of the child processes that have ended
    for child in children:
        with suppress(psutil.Error):
            total += sum(psutil.Process(child.pid).cpu_times()[:4])
    return total


class Host:
    """Samples the metrics of one machine. The first sample covers the time since the object was created."""

    def __init__(self) -> None:
        self.times = core_times()
        """Core times at the last sample."""
        self._received, self._sent = _network()

    def sample(self) -> dict[str, float]:
        """Return the values of `HOST_METRICS`, those of the cores as the mean since the last sample; takes 0.5 ms."""
        before, self.times = self.times, core_times()
        memory, disk, (received, sent) = psutil.virtual_memory(), psutil.disk_usage(os.sep), _network()
        values = (
            100 * (self.times.busy - before.busy) / max(self.times.all - before.all, 1e-9),
            memory.used / MEGA,
            100 * memory.used / memory.total,
            disk.percent,
            disk.used / MEGA,
            disk.free / MEGA,
            received - self._received,
            sent - self._sent,
        )
        return dict(zip(HOST_METRICS, values, strict=True))


def _network() -> tuple[float, float]:
    """Return the megabytes received and sent since the machine was started; zeros if it does not report them."""
    counters = psutil.net_io_counters(nowrap=False)
    return (counters.bytes_recv / MEGA, counters.bytes_sent / MEGA) if counters is not None else (0.0, 0.0)


class Reading(NamedTuple):
    """Use of a machine's cores up to one moment."""

    clock: float
    """Time of the reading in seconds, by a clock of that machine."""
    busy: float
    """Core seconds used so far by all programs."""
    own: float
    """Core seconds used so far by the run's processes on that machine."""


class OtherLoad:
    """Fraction of a machine's cores, 0 to 1, that programs other than this run's processes keep busy.

    It is the difference of two readings of the system's counters, so that nothing waits for it. Ray's own processes,
    and the process that records the run, count as other programs.
    """

    SECONDS = 1.0
    """Shortest interval between two readings that are compared, in seconds: the system counts in steps of 0.01 s."""

    def __init__(self, cores: int) -> None:
        self.at_start: float | None = None
        """Fraction over the first interval; None before its end."""
        self.at_end: float | None = None
        """Fraction over the last interval; None before the end of the first one."""
        self._cores = cores
        self._before: Reading | None = None
        self._base: Reading | None = None

    def see(self, reading: Reading) -> None:
        """Take in a reading. Readings must be in order of time."""
        if self._base is None:
            self._base = reading
        elif reading.clock - self._base.clock >= self.SECONDS:
            self.at_end = self._share(self._base, reading)
            self.at_start = self.at_end if self.at_start is None else self.at_start
            self._before, self._base = self._base, reading
        elif self._before is not None:
            self.at_end = self._share(self._before, reading)

    def _share(self, begin: Reading, end: Reading) -> float:
        others = (end.busy - begin.busy) - (end.own - begin.own)
        return min(max(others / ((end.clock - begin.clock) * self._cores), 0.0), 1.0)
