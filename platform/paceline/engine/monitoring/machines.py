"""Readings of each rank: its own process always, and the machine and GPUs that no rank before it reads."""

from collections.abc import Sequence

import torch

from paceline.engine.monitoring.energy import ProcessorEnergy
from paceline.engine.monitoring.gpus import GPU_METRICS, Gpu, joules_of
from paceline.engine.monitoring.host import HOST_METRICS, Host, core_times, own_core_seconds
from paceline.engine.monitoring.stamp import Card

SAMPLE_SECONDS = 5.0
"""Seconds between two readings of the machines, which are taken at the next log."""
AT_EACH_LOG = ("own_seconds", "wait_seconds", "peak_memory_bytes", "memory_bytes", "clock")
"""Fields that each rank reports at every log."""
SAMPLED_BY_ALL = (*AT_EACH_LOG, "own_core_seconds")
"""Fields that each rank reports at the logs at which the machines are read."""
BUSY = "busy_core_seconds"
JOULES = "joules"


def fields_of(rank: int, cards: Sequence[Card], system: bool) -> list[str]:
    """Return the fields that a rank reports when the machines are read.

    The first rank on a machine also reports the machine, and the first rank on a GPU reports the GPU.

    Args:
        cards: cards of all ranks.
        system: True to read the machines' own metrics and their energy.
    """
    card, before = cards[rank], [card for card in cards[:rank] if card.host == cards[rank].host]
    fields = [*SAMPLED_BY_ALL, *([] if before else [BUSY])]
    if not system:
        return fields
    known = {gpu for each in before for gpu in each.gpus}
    numbers = [number for identity, number in card.gpus if (identity, number) not in known]
    fields += [] if before else HOST_METRICS
    fields += [gpu_field(number, name) for number in numbers for name in GPU_METRICS]
    # on a machine with GPUs, only their energy counts
    return [*fields, JOULES] if numbers or not (before or card.gpu_count) else fields


def gpu_field(number: int, name: str) -> str:
    """Return MLflow's name for one of `GPU_METRICS` of a GPU."""
    return f"gpu_{number}_{name}"


class Machines:
    """This rank's readings of its machine and GPUs. Energy and means are counted from the creation of the object.

    Args:
        fields: fields to report, from `fields_of`.
    """

    def __init__(self, fields: Sequence[str], gpus: Sequence[Gpu], device: torch.device) -> None:
        self._tells_busy = BUSY in fields
        self._gpus = [gpu for gpu in gpus if gpu_field(gpu.number, GPU_METRICS[0]) in fields]
        for gpu in self._gpus:
            gpu.begin()
        self._host = Host() if HOST_METRICS[0] in fields else None
        self._energy = ProcessorEnergy() if JOULES in fields and device.type != "cuda" else None

    def look(self) -> dict[str, float]:
        """Return the present values, by field."""
        values = {"own_core_seconds": own_core_seconds()}
        if self._host is not None:
            values |= self._host.sample()
        if self._tells_busy:
            values[BUSY] = (self._host.times if self._host is not None else core_times()).busy
        for gpu in self._gpus:
            values |= {gpu_field(gpu.number, name): value for name, value in gpu.sample().items()}
        joules = self._energy.joules() if self._energy is not None else joules_of(self._gpus)
        return values if joules is None else {**values, JOULES: joules}


class Rhythm:
    """Decides at which logs the machines are read. All ranks decide alike, since they use the same exchanged values."""

    def __init__(self) -> None:
        self.is_due = True
        """True if the machines are read at the next log; always True at the first one."""
        self._looked = self._heard = 0.0

    def note(self, clock: float, looked: bool) -> None:
        """Take in a log.

        Args:
            clock: rank 0's clock at the log, in seconds.
            looked: True if the machines were read.
        """
        # the next log is expected after the same time as between the last log and this one
        window = clock - self._heard if self._heard else 0.0
        self._heard = clock
        self._looked = clock if looked else self._looked
        self.is_due = clock - self._looked + window >= SAMPLE_SECONDS
