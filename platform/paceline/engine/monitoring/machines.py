"""What each rank looks at: its own process always, and of the machines whatever no rank before it looks at."""

from collections.abc import Sequence

import torch

from paceline.engine.monitoring.energy import ProcessorEnergy
from paceline.engine.monitoring.gpus import GPU_METRICS, Gpu, joules_of
from paceline.engine.monitoring.host import HOST_METRICS, Host, core_times, own_core_seconds
from paceline.engine.monitoring.stamp import Card

SAMPLE_SECONDS = 5.0
"""The machines are looked at this often, at the log that comes next."""
AT_EACH_LOG = ("own_seconds", "wait_seconds", "peak_memory_bytes", "memory_bytes", "clock")
"""What each rank tells whether or not the machines are looked at."""
TOLD_BY_ALL = (*AT_EACH_LOG, "own_core_seconds")
"""What each rank tells when they are."""
BUSY = "busy_core_seconds"
JOULES = "joules"


def fields_of(rank: int, cards: Sequence[Card], system: bool) -> list[str]:
    """What a rank tells when the machines are looked at: the first on a machine also of it, the first on a GPU of that.

    Args:
        cards: of all ranks.
        system: whether the machines' own metrics and their energy are wanted.
    """
    card, before = cards[rank], [card for card in cards[:rank] if card.host == cards[rank].host]
    fields = [*TOLD_BY_ALL, *([] if before else [BUSY])]
    if not system:
        return fields
    known = {gpu for each in before for gpu in each.gpus}
    numbers = [number for identity, number in card.gpus if (identity, number) not in known]
    fields += [] if before else HOST_METRICS
    fields += [gpu_field(number, name) for number in numbers for name in GPU_METRICS]
    # where there are GPUs, it is their energy that counts
    return [*fields, JOULES] if numbers or not (before or card.gpu_count) else fields


def gpu_field(number: int, name: str) -> str:
    """Name of one of `GPU_METRICS` of a GPU, as MLflow has it."""
    return f"gpu_{number}_{name}"


class Machines:
    """This rank's part of it. Energy and means are counted from when this is made.

    Args:
        fields: what it is to tell, by `fields_of`.
    """

    def __init__(self, fields: Sequence[str], gpus: Sequence[Gpu], device: torch.device) -> None:
        self._tells_busy = BUSY in fields
        self._gpus = [gpu for gpu in gpus if gpu_field(gpu.number, GPU_METRICS[0]) in fields]
        for gpu in self._gpus:
            gpu.begin()
        self._host = Host() if HOST_METRICS[0] in fields else None
        self._energy = ProcessorEnergy() if JOULES in fields and device.type != "cuda" else None

    def look(self) -> dict[str, float]:
        """The values of now, by field."""
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
    """Decides whether the machines are looked at for a log: alike on all ranks, by what all of them have heard."""

    def __init__(self) -> None:
        self.is_due = True
        """Whether they are at the next log; always at the first one."""
        self._looked = self._heard = 0.0

    def note(self, clock: float, looked: bool) -> None:
        """A log has been heard.

        Args:
            clock: rank 0's clock at it, in seconds.
            looked: whether the machines were looked at.
        """
        # the next log is expected to come as long after this one as this one came after the last
        window = clock - self._heard if self._heard else 0.0
        self._heard = clock
        self._looked = clock if looked else self._looked
        self.is_due = clock - self._looked + window >= SAMPLE_SECONDS
