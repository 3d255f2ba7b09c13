"""The canonical data order: the samples of each optimizer step, and this rank's part of them.

An epoch is a permutation fixed by (seed, epoch), cut into global batches; each rank takes its slice of each global
batch. The samples of a step therefore depend on neither the world size nor the loader, and a position in the data is
one number: the samples consumed in the epoch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from math import ceil
from operator import index
from typing import Any

import torch

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.config.steps import epoch_steps
from paceline.errors import UnusableCode


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, samples: int) -> torch.Tensor:
    """Return the order of an epoch's samples: int64, shape [samples]."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(samples, generator=generator)


def mix(*numbers: int) -> int:
    """Return a 63-bit seed from several numbers (SplitMix64's finalizer, Steele et al. 2014, over each in turn)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward pass of one rank."""

    ids: torch.Tensor
    """Sample ids: int64, shape [samples], at least one."""
    step_samples: int
    """Number of samples in the global batch that this is a part of."""
    is_last: bool = True
    """True if the optimizer steps after this micro batch."""
    ends_epoch: bool = False
    """True in the last step of an epoch."""
    counts: bool = True
    """False for padding: a rank without a sample in a short last batch still has to take part in the gradient
    exchange, so it computes one sample with weight zero."""


def identity_until(identity: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Return the part of an order's identity that matters to a position after `samples` samples.

    Stages of the batch size that begin later may differ.
    """
    stages = identity.get("batch_size_schedule", [[0, identity.get("global_batch_size")]])
    others = {key: value for key, value in identity.items() if key not in ("batch_size_schedule", "global_batch_size")}
    return {**others, "batch_size_schedule": [list(each) for each in stages if each[0] < max(samples, 1)]}


@dataclass(frozen=True)
class DataOrder:
    """The order of one data set for a given batch, seed and place among the ranks."""

    samples: int
    global_batch_size: int
    micro_batch_size: int
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    sampler: Any = None
    """Iterable that yields the `samples` ids of an epoch in place of a permutation; seeded for each epoch."""
    is_lockstep: bool = False
    """True if all ranks take equally many micro batches, since each forward pass is a collective operation."""
    scheduled: ScheduledSteps | None = None
    """Steps of a schedule of the global batch size, whose first stage has `global_batch_size`; None without one."""
    stage_micro_batch_sizes: tuple[int, ...] = ()
    """Micro batch size of each stage of that schedule."""

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of one epoch; with a schedule, of the first epoch."""
        if self.scheduled is not None:
            return self.scheduled.after(epochs=1).step
        return epoch_steps(self.samples, self.global_batch_size, self.drop_last)

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples that an epoch consumes: a short last batch may be dropped. With a schedule, the maximum."""
        if self.scheduled is not None:
            return self.samples
        return min(self.steps_per_epoch * self.global_batch_size, self.samples)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values that must be the same on resuming for a position in the order to be valid."""
        return {
            "samples": self.samples,
            "global_batch_size": self.global_batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            **({} if self.sampler is None else {"sampler": type(self.sampler).__name__}),
            **self._schedule_identity(),
        }

    def _schedule_identity(self) -> dict[str, Any]:
        if self.scheduled is None:
            return {}
        schedule = self.scheduled.schedule
        return {"batch_size_schedule": [list(each) for each in zip(schedule.starts, schedule.sizes, strict=True)]}

    def epochs(self, samples: int) -> float:
        """Return the number of passes over the data set that `samples` samples are, with a fraction."""
        return samples / self.samples

    def step_ids(self, epoch: int, step: int) -> torch.Tensor:
        """Return the ids of the global batch at `step` of the epoch: int64, shape [<= global_batch_size]."""
        start = step * self.global_batch_size
        return self.ids_between(epoch, start, min(start + self.global_batch_size, self.samples))

    def ids_between(self, epoch: int, start: int, stop: int) -> torch.Tensor:
        """Return the ids of consecutive samples of the epoch: int64, shape [stop - start]."""
        if self.sampler is not None:
            return self._sampled(epoch)[start:stop]
        if not self.shuffle:
            return torch.arange(start, stop)
        return permutation(self.seed, epoch, self.samples)[start:stop]

    def _sampled(self, epoch: int) -> torch.Tensor:
        """Return the sampler's ids of an epoch: int64, shape [samples]; the same on all ranks."""
        if self._newest_epoch.get("epoch") != epoch:
            with torch.random.fork_rng(devices=[]):
                seed = mix(self.seed, epoch)
                torch.manual_seed(seed)
                generator = getattr(self.sampler, "generator", None)
                if generator is not None:
                    generator.manual_seed(seed)
                if hasattr(self.sampler, "set_epoch"):
                    self.sampler.set_epoch(epoch)
                given = list(islice(self.sampler, self.samples + 1))  # it may never end
            if len(given) != self.samples:
                more = " or more" if len(given) > self.samples else ""
                raise UnusableCode(
                    f"the sampler says that it has {self.samples} ids, and gave {len(given)}{more} in epoch {epoch}",
                    "sampler-length",
                )
            ids = torch.tensor([_sample_id(each) for each in given], dtype=torch.int64)
            self._newest_epoch.update(epoch=epoch, ids=ids)
        return self._newest_epoch["ids"]  # type: ignore[no-any-return]

    @cached_property
    def _newest_epoch(self) -> dict[str, Any]:
        return {}

    def step_micro_batches(self, epoch: int, step: int) -> list[MicroBatch]:
        """Return this rank's share of the global batch at `step`, cut into micro batches; at least one."""
        return self._cut(self.step_ids(epoch, step), self.micro_batch_size, step + 1 == self.steps_per_epoch)

    def _cut(self, ids: torch.Tensor, micro_batch_size: int, ends_epoch: bool) -> list[MicroBatch]:
        samples = ids.numel()  # `len` of a tensor takes ten times as long
        share = ids.tensor_split(self.world_size)[self.rank] if self.world_size > 1 else ids
        mine = share.numel()
        if self.is_lockstep and self.world_size > 1:
            return self._in_lockstep(torch.split(share, micro_batch_size), ids, micro_batch_size, ends_epoch)
        if not mine:
            return [MicroBatch(ids[:1], samples, True, ends_epoch, counts=False)]
        if mine <= micro_batch_size:
            return [MicroBatch(share, samples, True, ends_epoch)]
        parts = torch.split(share, micro_batch_size)
        return [MicroBatch(part, samples, part is parts[-1], ends_epoch) for part in parts]

    def _in_lockstep(
        self, parts: Sequence[torch.Tensor], ids: torch.Tensor, micro_batch_size: int, ends_epoch: bool
    ) -> list[MicroBatch]:
        """Return as many micro-batches as the other ranks have, the missing ones as padding that does not count."""
        samples = ids.numel()
        count = _passes(samples, self.world_size, micro_batch_size)
        own = [part for part in parts if len(part)]
        return [
            MicroBatch(part, samples, index == count - 1, ends_epoch, counts=index < len(own))
            for index, part in enumerate([*own, *[ids[:1]] * (count - len(own))])
        ]

    def micro_batches(self, epoch: int, epoch_samples: int = 0, samples: int = 0) -> Iterator[MicroBatch]:
        """Yield this rank's micro batches from a position to the end of the epoch.

        Args:
            epoch_samples: number of samples consumed in the epoch so far.
            samples: number of samples consumed since the start, which decides on the stage of a schedule.
        """
        if self.scheduled is not None:
            for start, stop, stage, ends_epoch in self.scheduled.batches(epoch_samples, samples):
                yield from self._cut(
                    self.ids_between(epoch, start, stop), self.stage_micro_batch_sizes[stage], ends_epoch
                )
            return
        for step in range(epoch_samples // self.global_batch_size, self.steps_per_epoch):
            yield from self.step_micro_batches(epoch, step)


def _sample_id(value: Any) -> int:
    """Return an id from a sampler as an integer.

    Raises:
        UnusableCode: the id is not a whole number.
    """
    try:
        return index(value)
    except TypeError:
        raise UnusableCode(
            f"the sampler gave a {type(value).__name__}. Give whole numbers, the indices of samples; a batch sampler "
            "does not work here",
            "sampler-id",
            returned=type(value).__name__,
        ) from None


def evaluation_order(
    samples: int, micro_batch_size: int, rank: int, world_size: int, is_lockstep: bool = False
) -> list[MicroBatch]:
    """Return this rank's part of an evaluation set: every sample is on exactly one rank. The part may be empty.

    With `is_lockstep` the ranks get equally many micro batches, the last of which may be padding that does not count.
    """
    share = torch.arange(samples).tensor_split(world_size)[rank]
    own = [MicroBatch(part, samples) for part in torch.split(share, micro_batch_size) if len(part)]
    count = _passes(samples, world_size, micro_batch_size) if is_lockstep else len(own)
    return own + [MicroBatch(torch.zeros(1, dtype=torch.int64), samples, counts=False)] * (count - len(own))


def _passes(samples: int, world_size: int, micro_batch_size: int) -> int:
    """Return the number of micro batches of the rank with the largest share."""
    return ceil(ceil(samples / world_size) / micro_batch_size)
