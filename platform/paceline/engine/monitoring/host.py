"""What a machine is doing: its cores, memory, disk and network, in MLflow's names and units."""

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
"""As in `mlflow.system_metrics`; `tracking.metrics` says what they are."""
MEGA = 1e6


class CoreTimes(NamedTuple):
    """Seconds that the machine's cores have spent since it was started, all cores together."""

    busy: float
    """Also what was held back for other machines on the same hardware."""
    all: float


def core_times() -> CoreTimes:
    """As of now; 0.1 ms."""
    times: Any = psutil.cpu_times()
    # a guest's time is in its host's user time as well
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CoreTimes(everything - times.idle - getattr(times, "iowait", 0.0), everything)


def own_core_seconds() -> float:
    """Core seconds of this process and of its loader processes, those included that have ended."""
    children = multiprocessing.active_children()  # first: whoever has ended by now is among the times below
    total = sum(os.times()[:4])  # its own, and those of the processes that it has seen end
    for child in children:
        with suppress(psutil.Error):
            total += sum(psutil.Process(child.pid).cpu_times()[:4])
    return total


class Host:
    """Samples one machine. The first sample is about the time since this was made."""

    def __init__(self) -> None:
        self.times = core_times()
        """At the last sample."""
        self._received, self._sent = _network()

    def sample(self) -> dict[str, float]:
        """Values of `HOST_METRICS`, the cores' as the mean since the last sample; half a millisecond."""
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
    """Megabytes received and sent since the machine was started; zeros where it does not tell."""
    counters = psutil.net_io_counters(nowrap=False)
    return (counters.bytes_recv / MEGA, counters.bytes_sent / MEGA) if counters is not None else (0.0, 0.0)


class Reading(NamedTuple):
    """The cores of a machine at one moment."""

    clock: float
    """Seconds of some clock of that machine."""
    busy: float
    """Core seconds that were used up to then, by whatever program."""
    own: float
    """Core seconds that the run's own processes there have used."""


class OtherLoad:
    """The share of a machine's cores, 0 to 1, that other programs than this run's processes keep busy.

    Measured between two readings of what is counted anyway, so that nothing waits for it. Ray's own processes, and the
    one that records the run, are other programs.
    """

    SECONDS = 1.0
    """Readings must be so far apart: the machine counts in hundredths of a second."""

    def __init__(self, cores: int) -> None:
        self.at_start: float | None = None
        """Over the first stretch of time; None before there was one."""
        self.at_end: float | None = None
        """Over the last one."""
        self._cores = cores
        self._before: Reading | None = None
        self._base: Reading | None = None

    def see(self, reading: Reading) -> None:
        """Take in a reading, in the order of time."""
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
