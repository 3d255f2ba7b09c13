"""Parts of a training step's time, and the split into them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.engine.monitoring.stragglers import Straggler, slowest

DATA, TRANSFER, FORWARD, BACKWARD = "data", "transfer", "forward", "backward"
COMMUNICATION, WAITING, OPTIMIZER, LOGGING, IDLE = "communication", "waiting", "optimizer", "logging", "idle"
PARTS = (DATA, TRANSFER, FORWARD, BACKWARD, COMMUNICATION, WAITING, OPTIMIZER, LOGGING, IDLE)
"""`data`: waiting for a batch; `transfer`: copying it to the device; `communication`: the part of the gradient exchange
that backward does not hide; `waiting`: waiting for a slower rank; `logging`: all work after a step, including
evaluation and checkpoints; `idle`: the rest."""

COMPUTE = (FORWARD, BACKWARD, OPTIMIZER, IDLE)
OWN = (DATA, TRANSFER, *COMPUTE)
"""Parts that every rank spends on its own work. `logging` is not among them, since only rank 0 reports."""


@dataclass(frozen=True)
class RankSplit:
    """Time of one rank's steps by part, in seconds per optimizer step."""

    seconds: dict[str, float]
    """Seconds by part; they add up to `step_seconds`."""
    step_seconds: float
    """Wall-clock seconds from one step to the next."""
    blocked: dict[str, float] = field(default_factory=dict)
    """Seconds of `data` and of `forward` in which the process neither computed nor waited for a core: it slept, or read
    from a disk or a network. Empty on a GPU, and if the system does not report it."""
    after_step: dict[str, float] = field(default_factory=dict)
    """Seconds of `logging` spent on `evaluation` and on `checkpoints`."""
    syncs: float = 0.0
    """Number of operations per step in the forward pass that made the host wait for the GPU."""
    host: str = ""
    """Name of the machine."""
    cores: int = 1
    """Number of usable cores of the machine per rank on it."""

    @property
    def own_seconds(self) -> float:
        """Seconds of the rank's own work, without the work that only rank 0 does."""
        return sum(self.seconds[part] for part in OWN)

    @property
    def compute_seconds(self) -> float:
        """Seconds of the computation, including launch overhead."""
        return sum(self.seconds[part] for part in COMPUTE)

    @property
    def mostly_after_step(self) -> str:
        """Name of the largest part of `logging`: `logging` itself, `evaluation` or `checkpoints`."""
        spent = {LOGGING: self.seconds[LOGGING] - sum(self.after_step.values()), **self.after_step}
        return max(spent, key=lambda name: spent[name])


@dataclass(frozen=True)
class StepSplit:
    """Time of an optimizer step by part, on this rank and on all ranks. Every rank has the same `ranks`."""

    rank: int
    """Rank that this split belongs to."""
    ranks: tuple[RankSplit, ...]
    """Splits of all ranks, in order of rank."""
    steps: int
    """Number of optimizer steps that were measured."""
    micro_batch_size: int
    global_batch_size: int
    samples: int
    """Number of samples in the training set."""
    device: str = "cpu"
    """Kind of device. With `cuda`, the parts are measured in steps in which the host waits for the GPU after each part,
    so that nothing overlaps."""
    free_step_seconds: float | None = None
    """Seconds per step without these waits; None on CPU."""

    @property
    def seconds(self) -> dict[str, float]:
        """This rank's seconds per step by part."""
        return self.ranks[self.rank].seconds

    @property
    def step_seconds(self) -> float:
        """This rank's seconds per step by the wall clock."""
        return self.ranks[self.rank].step_seconds

    @property
    def sample_seconds(self) -> float:
        """Seconds per sample of the global batch."""
        return (self.free_step_seconds or self.step_seconds) / self.global_batch_size

    @property
    def compute_seconds(self) -> float:
        """Seconds of the computation per step, on the fastest rank."""
        return min(each.compute_seconds for each in self.ranks)

    def fraction(self, part: str) -> float:
        """Return a part's share of this rank's step, 0 to 1."""
        return self.seconds[part] / self.step_seconds

    def fractions(self, part: str) -> list[float]:
        """Return a part's share of the step of each rank, in order of rank."""
        return [each.seconds[part] / each.step_seconds for each in self.ranks]

    def median(self, part: str) -> float:
        """Return a part's seconds per step, as the median over the ranks."""
        return median(each.seconds[part] for each in self.ranks)

    def max(self, part: str) -> float:
        """Return a part's seconds per step, as the maximum over the ranks."""
        return max(each.seconds[part] for each in self.ranks)

    def straggler(self) -> Straggler | None:
        """Return the rank that the others wait for; None if no rank is slower than the others in its own work."""
        return slowest([each.own_seconds for each in self.ranks])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: this rank's seconds and fractions by part, and the median and maximum over the ranks."""
        parts = {
            part: {
                "seconds": self.seconds[part],
                "fraction": self.fraction(part),
                "median_seconds": self.median(part),
                "max_seconds": self.max(part),
            }
            for part in PARTS
        }
        return {
            "rank": self.rank,
            "world_size": len(self.ranks),
            "device": self.device,
            "steps": self.steps,
            "micro_batch_size": self.micro_batch_size,
            "global_batch_size": self.global_batch_size,
            "step_seconds": self.step_seconds,
            "free_step_seconds": self.free_step_seconds,
            "parts": parts,
            "own_seconds_of_ranks": [each.own_seconds for each in self.ranks],
        }


def share_waited(exposed: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Separate the exchange itself from waiting for the slowest rank.

    The last rank to reach an exchange waits for no other: its time there is the exchange. Any further time of the other
    ranks is waiting.

    Args:
        exposed: seconds that each rank spent in the exchange of each step, [rank][step].

    Returns:
        Seconds of communication by step, and of waiting by rank and step.
    """
    communication = [min(step) for step in zip(*exposed, strict=True)]
    waiting = [[each - least for each, least in zip(own, communication, strict=True)] for own in exposed]
    return communication, waiting


def fixed_seconds(split: StepSplit, larger: StepSplit | None) -> float | None:
    """Return the seconds of a step's computation that do not depend on its samples; None if they were not measured.

    Args:
        larger: split with a larger micro batch. The time is assumed to grow linearly with the micro batch.
    """
    if larger is None or larger.micro_batch_size <= split.micro_batch_size:
        return None
    times = larger.micro_batch_size / split.micro_batch_size
    fixed = (times * split.compute_seconds - larger.compute_seconds) / (times - 1)
    return min(max(fixed, 0.0), split.compute_seconds)
