"""Names the bottleneck of a step from its split: the cause that loses the largest share of the time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from paceline.config.experiment import ExperimentConfig
from paceline.profiling.fixes import Fix, fixes_for
from paceline.profiling.parts import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    LOGGING,
    TRANSFER,
    StepSplit,
    fixed_seconds,
)

Kind = Literal["data", "small_batch", "synchronisation", "communication", "straggler", "logging", "compute"]

LEAST_SHARE = 0.2
"""Share of a step that a cause must take to be named."""
LEAST_OVERHEAD = 0.5
"""Least share for a small batch. It is higher: some of a step's computation never depends on its samples."""


@dataclass(frozen=True)
class BottleneckFacts:
    """Facts that a diagnosis needs in addition to the split."""

    larger: StepSplit | None = None
    """Split with a larger micro batch. Without it, a small batch is never named."""


@dataclass(frozen=True)
class Bottleneck:
    """The part that limits the speed of steps."""

    kind: Kind
    share: float
    """Share of a step's time that is lost to it, 0 to 1; for `compute` the share of the forward and backward pass."""
    reason: str
    """Description of the measurement, in one sentence. It says what to inspect if no field of the config helps."""
    fixes: tuple[Fix, ...] = ()
    """Fixes in the order to try; empty if the cause is not in the config."""


@dataclass(frozen=True)
class _Cause:
    kind: Kind
    share: float
    reason: str
    least: float = LEAST_SHARE


def name_bottleneck(split: StepSplit, config: ExperimentConfig, facts: BottleneckFacts | None = None) -> Bottleneck:
    """Return the cause that loses the largest share of a step, and its fixes. The result is the same on all ranks.

    Args:
        config: config that the split was measured with.
    """
    facts = facts or BottleneckFacts()
    causes = [found for look in _LOOKS if (found := look(split, facts)) is not None]
    named = max((each for each in causes if each.share >= each.least), key=lambda each: each.share, default=None)
    named = named or _syncs(split) or _compute(split)
    return Bottleneck(named.kind, named.share, named.reason, fixes_for(named.kind, split, config, facts.larger))


def _data(split: StepSplit, facts: BottleneckFacts) -> _Cause:
    waits, copies = median(split.fractions(DATA)), median(split.fractions(TRANSFER))
    if copies > waits:
        reason = f"the copy of a batch to the device takes {_ms(split.median(TRANSFER))} a step"
    else:
        reason = f"a step waits {_ms(split.median(DATA))} for its data"
    return _Cause("data", waits + copies, f"{reason}, {_percent(waits + copies)} of its time")


def _communication(split: StepSplit, facts: BottleneckFacts) -> _Cause:
    share = median(split.fractions(COMMUNICATION))
    reason = (
        f"the exchange of gradients takes {_ms(split.median(COMMUNICATION))} a step that backward does not hide, "
        f"{_percent(share)} of its time, and no rank comes late to it"
    )
    return _Cause("communication", share, reason)


def _straggler(split: StepSplit, facts: BottleneckFacts) -> _Cause | None:
    found = split.straggler()
    if found is None:
        return None
    slow, others = split.ranks[found.rank], [each for each in split.ranks if each is not split.ranks[found.rank]]
    excess = {part: slow.seconds[part] - median(each.seconds[part] for each in others) for part in _OWN_PARTS}
    where = max(excess, key=lambda part: excess[part])
    share = (found.seconds - found.others_seconds) / slow.step_seconds
    reason = (
        f"rank {found.rank} on {slow.host} takes {found.factor:.1f} times as long as the others by itself, most of it "
        f"in {where}, and they wait for it; {_HINT.get(where, 'look at what else runs there, and at its clock')}"
    )
    return _Cause("straggler", share, reason)


_OWN_PARTS = (DATA, TRANSFER, FORWARD, BACKWARD, "optimizer", "idle")
_HINT = {DATA: "look at how its data are read"}


def _logging(split: StepSplit, facts: BottleneckFacts) -> _Cause:
    # the rank that reports is the slowest here, and the others wait for it later
    slow = max(split.ranks, key=lambda each: each.seconds[LOGGING])
    share = slow.seconds[LOGGING] / slow.step_seconds
    spent = f"takes {_ms(slow.seconds[LOGGING])} a step, {_percent(share)} of its time"
    reason = f"what is due between the steps, {slow.mostly_after_step} most of all, {spent}"
    return _Cause("logging", share, reason)


def _synchronisation(split: StepSplit, facts: BottleneckFacts) -> _Cause | None:
    shares = [each.blocked[FORWARD] / each.step_seconds for each in split.ranks if each.blocked]
    if not shares:
        return None
    share = median(shares)
    seconds = median(each.blocked[FORWARD] for each in split.ranks)
    reason = (
        f"in forward the process does nothing for {_ms(seconds)} a step, {_percent(share)} of its time: the code of "
        "the task or the model sleeps, or waits for something; take that out of the step, or do it now and then"
    )
    return _Cause("synchronisation", share, reason)


def _syncs(split: StepSplit) -> _Cause | None:
    """Return the cause for reads from the GPU, which make host and device wait for each other; None without reads."""
    syncs = median(each.syncs for each in split.ranks)
    if syncs < 1:
        return None
    share = median(split.fractions(FORWARD))
    reason = (
        f"the code of the task or the model reads from the GPU {syncs:.1f} times a step, such as by .item(), and each "
        f"time one waits for the other; it costs at most forward's share, {_percent(share)}. Keep what is read on the "
        "device, and read it when it is shown"
    )
    return _Cause("synchronisation", share, reason)


def _small_batch(split: StepSplit, facts: BottleneckFacts) -> _Cause | None:
    fixed = fixed_seconds(split, facts.larger)
    if fixed is None or facts.larger is None:
        return None
    # blocking does not depend on the batch size; use the fastest rank, to exclude a straggler
    least = min(range(len(split.ranks)), key=lambda rank: split.ranks[rank].compute_seconds)
    fixed -= split.ranks[least].blocked.get(FORWARD, 0.0)
    share = fixed / split.ranks[least].step_seconds
    sizes = f"{split.micro_batch_size} to {facts.larger.micro_batch_size} samples"
    growth = facts.larger.compute_seconds / split.compute_seconds
    reason = (
        f"from {sizes} a micro batch the computation of a step takes only {growth:.1f} times as long: {_ms(fixed)} of "
        f"it, {_percent(share)} of the step, are the same for any batch"
    )
    return _Cause("small_batch", share, reason, LEAST_OVERHEAD)


def _compute(split: StepSplit) -> _Cause:
    share = median(
        forward + backward
        for forward, backward in zip(split.fractions(FORWARD), split.fractions(BACKWARD), strict=True)
    )
    return _Cause("compute", share, f"nothing stands out: forward and backward take {_percent(share)} of a step")


_LOOKS: Sequence[Callable[[StepSplit, BottleneckFacts], _Cause | None]] = (
    _data,
    _communication,
    _straggler,
    _logging,
    _synchronisation,
    _small_batch,
)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _percent(share: float) -> str:
    return f"{share:.0%}"
