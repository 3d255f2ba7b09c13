"""Parts of a training step's time, and the split into them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.engine.monitoring.stragglers import Straggler, slowest

DATA, TRANSFER, FORWARD, BACKWARD = "data", "transfer", "forward", "backward"
COMMUNICATION, WAITING, OPTIMIZER, LOGGING, IDLE = "communication", "waiting", "optimizer", "logging", "idle"
PARTS = (DATA, TRANSFER, FORWARD, BACKWARD, COMMUNICATION, WAITING, OPTIMIZER, LOGGING, IDLE)
"""`data`: waiting for a batch; `transfer`: its way to the device; `communication`: the exchange of gradients as far as
backward does not hide it; `waiting`: for a slower rank; `logging`: all that is due after a step, so also evaluation and
checkpoints; `idle`: the rest."""

COMPUTE = (FORWARD, BACKWARD, OPTIMIZER, IDLE)
OWN = (DATA, TRANSFER, *COMPUTE)
"""What a rank does by itself, and all ranks alike: only rank 0 reports, so that `logging` is not in it."""


@dataclass(frozen=True)
class RankSplit:
    """Time of one rank's steps by part, in seconds per optimizer step."""

    seconds: dict[str, float]
    """By part; they add up to `step_seconds`."""
    step_seconds: float
    """Of the wall clock, from step to step."""
    blocked: dict[str, float] = field(default_factory=dict)
    """How much of `data` and of `forward` the process neither computed nor waited for a core: it slept, or read from a
    disk or a network. Empty where the system does not tell, and on a GPU."""
    after_step: dict[str, float] = field(default_factory=dict)
    """What of `logging` went into `evaluation` and `checkpoints`."""
    syncs: float = 0.0
    """Operations in the forward pass that made the host wait for the GPU."""
    host: str = ""
    """The machine's name."""
    cores: int = 1
    """Of the machine, for each of the ranks on it."""

    @property
    def own_seconds(self) -> float:
        """The time that the rank is busy by itself, without what only rank 0 does."""
        return sum(self.seconds[part] for part in OWN)

    @property
    def compute_seconds(self) -> float:
        """The time of the computation, with what it costs to start it."""
        return sum(self.seconds[part] for part in COMPUTE)

    @property
    def mostly_after_step(self) -> str:
        """The largest part of `logging`: `logging` itself, `evaluation` or `checkpoints`."""
        spent = {LOGGING: self.seconds[LOGGING] - sum(self.after_step.values()), **self.after_step}
        return max(spent, key=lambda name: spent[name])


@dataclass(frozen=True)
class StepSplit:
    """Time of an optimizer step by part, on this rank and on all; every rank has the same `ranks`."""

    rank: int
    """Whose split this is."""
    ranks: tuple[RankSplit, ...]
    """In order of rank."""
    steps: int
    """Optimizer steps that were measured."""
    micro_batch_size: int
    global_batch_size: int
    samples: int
    """Of the training set."""
    device: str = "cpu"
    """Kind of device. With `cuda` the parts are those of steps in which the host waits for the GPU after each part, so
    that nothing overlaps."""
    free_step_seconds: float | None = None
    """With `cuda`: seconds per step without these waits."""

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
        """A part's share of this rank's step, 0 to 1."""
        return self.seconds[part] / self.step_seconds

    def fractions(self, part: str) -> list[float]:
        """The same of all ranks, in order."""
        return [each.seconds[part] / each.step_seconds for each in self.ranks]

    def median(self, part: str) -> float:
        """Seconds per step, the median over the ranks."""
        return median(each.seconds[part] for each in self.ranks)

    def max(self, part: str) -> float:
        """Seconds per step, the most of any rank."""
        return max(each.seconds[part] for each in self.ranks)

    def straggler(self) -> Straggler | None:
        """The rank that the others wait for, if one is slower than the others by itself."""
        return slowest([each.own_seconds for each in self.ranks])

    def to_json(self) -> dict[str, Any]:
        """JSON values: this rank's seconds and fractions by part, and the median and the most over the ranks."""
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
    """Tell the exchange itself from waiting for the slowest rank.

    Who comes last to an exchange waits for nobody: what it takes there is the exchange, and all that the others take
    beyond is waiting.

    Args:
        exposed: seconds that each rank spent in the exchange of each step, [rank][step].

    Returns:
        Seconds of communication by step, and of waiting by rank and step.
    """
    communication = [min(step) for step in zip(*exposed, strict=True)]
    waiting = [[each - least for each, least in zip(own, communication, strict=True)] for own in exposed]
    return communication, waiting


def fixed_seconds(split: StepSplit, larger: StepSplit | None) -> float | None:
    """Seconds of a step's computation that do not depend on its samples; None where that was not measured.

    Args:
        larger: the split with a larger micro batch; the time is taken to grow with it along a line.
    """
    if larger is None or larger.micro_batch_size <= split.micro_batch_size:
        return None
    times = larger.micro_batch_size / split.micro_batch_size
    fixed = (times * split.compute_seconds - larger.compute_seconds) / (times - 1)
    return min(max(fixed, 0.0), split.compute_seconds)
