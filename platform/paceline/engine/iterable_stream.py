"""Training data from an `IterableDataset`: sharded over the ranks and their loader processes, and resumable.

Each loader process of each rank has one shard. Element i of the stream belongs to shard i modulo the number of shards.
A data set with a method `shard(num_shards=, index=)`, such as Hugging Face's, is sharded by that method. The generators
of torch, numpy and random are seeded from (seed, epoch, i) before element i is read, so that all processes see the same
stream, even if it shuffles. A resumed run restores the data set's `state_dict` if it has one (torchdata's convention),
and otherwise skips the consumed elements.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from paceline._compat.torch import end_loader_processes
from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.engine.collation import collated
from paceline.engine.dist_context import DistContext
from paceline.engine.loading import Transfer, ignore_interrupts, keep_as_is
from paceline.engine.order import MicroBatch, mix
from paceline.engine.seeding import seed_everything
from paceline.engine.state import Position
from paceline.errors import TrainingError, UnusableCode


class ShardState(NamedTuple):
    """Read position in a shard."""

    batches: int = 0
    """Micro-batches consumed in this epoch."""
    elements: int = 0
    """Elements of the stream read in this epoch, those of other shards included."""
    dataset: Any = None
    """The data set's own `state_dict` after them; None if it has none."""
    is_exhausted: bool = False
    """True once the shard has ended in this epoch: a data set's own state may then be that of its start."""


class _Read(NamedTuple):
    """A micro-batch as a loader process gives it."""

    worker: int
    samples: int
    batch: Any
    state: ShardState


class _Count(NamedTuple):
    """One rank's part of a step."""

    samples: int
    batches: int
    has_padding: bool
    """True if the rank has had a micro-batch, with which it can fill up a step that others still have some for."""


class _Shards(IterableDataset[_Read]):
    """The micro-batches of one loader process."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], micro_batch_size: int, seed: int, ranks: DistContext
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.micro_batch_size = micro_batch_size
        self.seed = seed
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self.epoch = 0
        self.first = 0
        """Index among the rank's shards of the one that the first loader process reads. A resumed run starts with the
        shard that is next."""
        self.states: Mapping[int, ShardState] = {}

    def __iter__(self) -> Iterator[_Read]:
        info = get_worker_info()
        process, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        worker = (process + self.first) % workers
        shard, shards = self.rank * workers + worker, self.world_size * workers
        state = self.states.get(worker, ShardState())
        if state.is_exhausted:
            return
        samples: list[Any] = []
        reader = _Reader(self.dataset, self.epoch, self.seed, shard, shards)
        batches = reader.resume(state, self.micro_batch_size)
        for sample in reader:
            samples.append(sample)
            if len(samples) == self.micro_batch_size:
                batches += 1
                yield self._read(worker, samples, reader.state(batches))
                samples = []
        if samples:
            yield self._read(worker, samples, reader.state(batches + 1)._replace(is_exhausted=True))

    def _read(self, worker: int, samples: list[Any], state: ShardState) -> _Read:
        return _Read(worker, len(samples), collated(self.collate, samples), state)


class _Reader:
    """The samples of one shard, in order."""

    def __init__(self, dataset: Any, epoch: int, seed: int, shard: int, shards: int) -> None:
        self._is_sharded = hasattr(dataset, "shard")
        self._dataset = dataset.shard(num_shards=shards, index=shard) if self._is_sharded else dataset
        self._epoch, self._seed, self._shard, self._shards = epoch, seed, shard, shards
        self._elements = 0
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)

    def resume(self, state: ShardState, micro_batch_size: int) -> int:
        """Continue from a state, and return the number of micro-batches consumed so far."""
        if state.dataset is not None and hasattr(self._dataset, "load_state_dict"):
            self._dataset.load_state_dict(deepcopy(state.dataset))
            self._elements = state.elements
            self._source = iter(self._dataset)
            return state.batches
        self._source = iter(self._dataset)
        for _ in zip(range(state.batches * micro_batch_size), self, strict=False):
            pass
        return state.batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            index = self._elements
            seed_everything(mix(self._seed, self._epoch, index))
            try:
                sample = next(self._source)
            except StopIteration:
                return
            self._elements += 1
            if self._is_sharded or index % self._shards == self._shard:
                yield sample

    def state(self, batches: int) -> ShardState:
        """Return the read position in the shard, after `batches` micro-batches."""
        own = self._dataset.state_dict() if hasattr(self._dataset, "state_dict") else None
        # a data set may hand out its own containers, which change until they are saved
        return ShardState(batches, self._elements, deepcopy(own))


class IterableStream:
    """An `IterableDataset` as training data.

    Args:
        share: samples of this rank in a full global batch.
        prefetch_factor: micro-batches that each loader process keeps ready.
        max_steps: optimizer steps of the training.

    Raises:
        UnusableCode: a rank has no sample at all.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None,
        micro_batch_size: int,
        share: int,
        seed: int,
        ranks: DistContext,
        transfer: Transfer,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        drop_last: bool = False,
        max_steps: int = 1,
    ) -> None:
        self.micro_batch_size = micro_batch_size
        self.steps_per_epoch = max_steps
        """Optimizer steps of the training: the number of steps in a pass over the stream is not known."""
        self.samples_per_epoch = float("inf")
        self.scheduled: ScheduledSteps | None = None
        self.wait_seconds = 0.0
        own: Callable[[list[Any]], Any] = getattr(dataset, "collate_fn", default_collate)
        self._shards = _Shards(dataset, collate or own, micro_batch_size, seed, ranks)
        self._per_step = share // micro_batch_size
        self._ranks = ranks
        self._transfer = transfer
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._states: dict[int, ShardState] = {}
        """Read position of each of this rank's shards after the micro-batches that have been trained on."""
        self._least = share * ranks.world_size if drop_last else 1
        """Smallest number of samples in a global batch."""
        self._epoch = 0
        self._last_worker = -1
        self._loader: DataLoader[Any] | None = None
        self._last: Any = None
        """The newest micro-batch, on the device: fills up steps for which this rank has no sample left."""
        self._has_read = False
        self._is_resumed = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values that must be the same on resuming for a position in the data to be valid."""
        return {
            "iterable": type(self._shards.dataset).__name__,
            "world_size": self._ranks.world_size,
            "num_workers": self._num_workers,
            "micro_batch_size": self.micro_batch_size,
            "seed": self._shards.seed,
        }

    def epochs(self, samples: int) -> float:
        """Return the number of finished passes over the stream; fractions are unknown, as is its length."""
        return float(self._epoch)

    def batches(self, position: Position) -> Iterator[tuple[MicroBatch, Any]]:
        """Yield the micro-batches from the position to the end of the epoch. Every rank must iterate equally far."""
        if position.epoch != self._epoch:
            self._epoch, self._states, self._last_worker = position.epoch, {}, -1
        self._shards.epoch, self._shards.states = position.epoch, dict(self._states)
        self._shards.first = (self._last_worker + 1) % max(self._num_workers, 1)
        self._loader = self._new_loader()
        source = iter(self._loader)
        step = self._next_step(source)
        counts = self._exchange(step)
        found = _samples(counts)
        if not found:
            raise UnusableCode("the iterable data set gives no sample", "no-samples")
        if found < self._least:
            raise TrainingError(
                f"the iterable data set gives {found} samples, fewer than the {self._least} of a global batch; set "
                f"data.global_batch_size to {found} or less, or drop_last to false",
                "too-few-samples",
                samples=found,
                global_batch_size=self._least,
            )
        while _samples(counts) >= self._least:
            self._fill_up(step, counts)
            ahead = self._next_step(source)
            counts_ahead = self._exchange(ahead)
            ends_epoch = _samples(counts_ahead) < self._least
            yield from self._micro_batches(step, counts, ends_epoch)
            step, counts = ahead, counts_ahead

    def state_dict(self) -> dict[str, Any]:
        """Return the read positions in the shards of all ranks. Every rank must call it."""
        workers = {str(worker): tuple(state) for worker, state in self._states.items()}
        own = {"workers": workers, "last": self._last_worker}
        return {"epoch": self._epoch, "shards": self._ranks.gather_objects(own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the read positions of a `state_dict`."""
        self._epoch = state["epoch"]
        own = state["shards"][self._ranks.rank]
        self._states = {int(worker): ShardState(*each) for worker, each in own["workers"].items()}
        self._last_worker = own["last"]
        self._is_resumed = True

    def close(self) -> None:
        """End the loader processes."""
        loader, self._loader = self._loader, None
        if loader is not None and self._num_workers:
            end_loader_processes(loader)

    def _new_loader(self) -> DataLoader[Any]:
        self.close()
        return DataLoader(
            self._shards,
            batch_size=None,
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch_factor if self._num_workers else None,
            worker_init_fn=ignore_interrupts,
            collate_fn=keep_as_is,
        )

    def _next_step(self, source: Iterator[_Read]) -> list[_Read]:
        start = perf_counter()
        found = [read for _, read in zip(range(self._per_step), source, strict=False)]
        self.wait_seconds += perf_counter() - start
        self._has_read = self._has_read or bool(found)
        return found

    def _exchange(self, step: list[_Read]) -> list[_Count]:
        """Return the part of each rank in a step."""
        has_padding = self._has_read or self._last is not None
        mine = [float(sum(read.samples for read in step)), float(len(step)), float(has_padding)]
        return [_Count(int(each[0]), int(each[1]), bool(each[2])) for each in self._ranks.gather_numbers(mine)]

    def _fill_up(self, step: list[_Read], counts: Sequence[_Count]) -> None:
        """Give a micro-batch of another rank to those that have none to fill up a step with.

        In a run that is resumed in mid-epoch, the samples of a rank may all have been trained on before.

        Raises:
            UnusableCode: the stream has no sample for a rank.
        """
        if all(count.has_padding for count in counts):
            return
        if not self._is_resumed:
            if self._has_read:
                return
            raise UnusableCode("the stream has no sample for this worker: it has fewer than workers", "no-samples")
        giver = next(rank for rank, count in enumerate(counts) if count.batches)
        batch = self._ranks.object_from(giver, step[0].batch if self._ranks.rank == giver else None)
        if not self._has_read and self._last is None:
            self._last = self._transfer(batch)

    def _micro_batches(
        self, step: list[_Read], counts: Sequence[_Count], ends_epoch: bool
    ) -> Iterator[tuple[MicroBatch, Any]]:
        samples, number = _samples(counts), max(count.batches for count in counts)
        for index in range(number):
            counted = index < len(step)
            if counted:
                self._last = self._transfer(step[index].batch)
                self._states[step[index].worker] = step[index].state
                self._last_worker = step[index].worker
            # the samples have no ids: they are counted from 0
            ids = torch.arange(step[index].samples if counted else 1)
            yield MicroBatch(ids, samples, index == number - 1, ends_epoch, counts=counted), self._last


def _samples(counts: Sequence[_Count]) -> int:
    """Return the number of samples of a step."""
    return sum(count.samples for count in counts)
