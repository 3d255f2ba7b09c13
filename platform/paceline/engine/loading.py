"""From sample ids to batches on the device.

Before a sample is fetched, torch, numpy and random are seeded from (seed, epoch, sample id), so that a user's random
transforms give the same sample in any process. They are seeded again for the batch before a custom `collate_fn`.
"""

import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from paceline._compat.torch import end_loader_processes
from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.collation import collated
from paceline.engine.order import MicroBatch, mix
from paceline.engine.seeding import seed_collation, seed_everything

Started = TypeVar("Started")
Finished = TypeVar("Finished")


@runtime_checkable
class SlicedDataset(Protocol):
    """A data set that returns whole batches, without work per sample."""

    def __len__(self) -> int: ...

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> Any:
        """Return the samples `ids` (int64, [batch]) of an epoch as one batch."""


class Fetcher(ABC):
    """Turns an (epoch, ids) key into a batch; runs in the training process or in a loader process."""

    needs_processes = True
    """True if loader processes take work off the training process. If False, none are started."""
    is_on_device = False
    """True if the batches are on the device already."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def fetch(self, epoch: int, ids: torch.Tensor) -> Any:
        """Return the samples `ids` (int64, [batch]) of an epoch as one batch."""

    def __getitem__(self, key: tuple[int, torch.Tensor]) -> Any:
        return self.fetch(*key)


class SeededFetcher(Fetcher):
    """Loads the samples of each batch again."""

    def __init__(
        self,
        dataset: Dataset[Any] | SlicedDataset,
        seed: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Args:
        collate_fn: makes a batch of a list of samples. None: the data set's `collate_fn`, else torch's default.
        """
        self.dataset = dataset
        self.seed = seed
        self.is_sliced = isinstance(dataset, SlicedDataset)
        self.collate: Callable[[list[Any]], Any] = collate_fn or _own_collate(dataset)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def fetch(self, epoch: int, ids: torch.Tensor) -> Any:
        """Return the samples `ids` (int64, [batch]) of an epoch as one batch."""
        if self.is_sliced:
            return self.dataset.batch(ids, self.seed, epoch)  # type: ignore[union-attr]
        samples = self.samples(epoch, ids)
        if self.collate is not default_collate:
            seed_collation(self.seed, epoch, ids)
        return collated(self.collate, samples)

    def samples(self, epoch: int, ids: torch.Tensor) -> list[Any]:
        """Return the samples of `fetch` one by one, before they are made into a batch; not of a sliced data set."""
        return [self._sample(epoch, index) for index in ids.tolist()]

    def _sample(self, epoch: int, index: int) -> Any:
        seed_everything(mix(self.seed, epoch, index))
        return self.dataset[index]  # type: ignore[index]


def _own_collate(dataset: Any) -> Callable[[list[Any]], Any]:
    """Return the `collate_fn` of a data set, or of the data set that it is a `Subset` of (see `random_split`)."""
    while not hasattr(dataset, "collate_fn") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    collate: Callable[[list[Any]], Any] = getattr(dataset, "collate_fn", default_collate)
    return collate


class BatchLoader:
    """Loads micro batches in a given order, here or in loader processes, and moves them to the device."""

    def __init__(
        self,
        fetcher: Fetcher,
        device: torch.device,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.fetcher = fetcher
        self.transfer = Transfer(device, dtype, memory_format)
        self.wait_seconds = 0.0
        """Seconds spent waiting for data since the start."""
        self._keys = _Keys()
        num_workers = num_workers if fetcher.needs_processes else 0
        pin = device.type == "cuda" and pin_memory is not False and not fetcher.is_on_device
        # From memory that is not page-locked a copy would wait anyway.
        self._copy_stream = CopyStream(device, self.transfer) if pin else None
        self.start: Callable[[Any], Any] = self.transfer if self._copy_stream is None else self._copy_stream.start
        """Function that moves a batch to the device, or starts to."""
        # Without loader processes and pinning the DataLoader would only add its overhead to every batch.
        self._loader: DataLoader[Any] | None = (
            DataLoader(
                fetcher,  # type: ignore[arg-type]
                sampler=self._keys,
                batch_size=None,
                num_workers=num_workers,
                pin_memory=pin,
                prefetch_factor=prefetch_factor if num_workers else None,
                persistent_workers=persistent_workers and num_workers > 0,
                worker_init_fn=ignore_interrupts,
                collate_fn=keep_as_is,
            )
            if num_workers or pin
            else None
        )

    def load(self, epoch: int, micro_batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        """Yield each of `micro_batches` in turn, with its batch on the device."""
        if self._loader is None:
            return self._load_here(epoch, micro_batches)
        started = self._load_ahead(self._loader, epoch, micro_batches)
        return started if self._copy_stream is None else one_ahead(started, self._copy_stream.finish)

    def _load_here(self, epoch: int, micro_batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        for micro_batch in micro_batches:
            start = perf_counter()
            batch = self.start(self.fetcher.fetch(epoch, micro_batch.ids))
            self.wait_seconds += perf_counter() - start
            yield micro_batch, batch

    def _load_ahead(
        self, loader: DataLoader[Any], epoch: int, micro_batches: Iterable[MicroBatch]
    ) -> Iterator[tuple[MicroBatch, Any]]:
        asked: deque[MicroBatch] = deque()
        self._keys.keys = _ask(epoch, micro_batches, asked)
        batches = iter(loader)
        while True:
            start = perf_counter()
            try:
                batch = self.start(next(batches))
            except StopIteration:
                return
            self.wait_seconds += perf_counter() - start
            yield asked.popleft(), batch

    def close(self) -> None:
        """End the loader processes."""
        loader, self._loader = self._loader, None
        if loader is not None:
            end_loader_processes(loader)


def keep_as_is(batch: Any) -> Any:
    # DataLoader's own conversion makes a list of a tuple, which the training process does not.
    return batch


def ignore_interrupts(worker: int) -> None:
    # Ctrl-C in a terminal, or closing it, signals the loader processes too, but the state is yet to be saved.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _ask(
    epoch: int, micro_batches: Iterable[MicroBatch], asked: deque[MicroBatch]
) -> Iterator[tuple[int, torch.Tensor]]:
    # Loader processes read ahead: a requested micro batch waits here until its batch is loaded.
    for micro_batch in micro_batches:
        asked.append(micro_batch)
        yield epoch, micro_batch.ids


class _Keys:
    """The sampler of the DataLoader: iterates over the keys that it holds at that moment."""

    keys: Iterable[tuple[int, torch.Tensor]] = ()

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        return iter(self.keys)


_END = object()


def one_ahead(started: Iterator[Started], finish: Callable[[Started], Finished]) -> Iterator[Finished]:
    """Finish and hand out each item, in order, once the next one has been started.

    An error of the next item is raised after the item before it, as if nothing were started ahead.
    """
    ahead: Any = next(started, _END)
    while ahead is not _END:
        item = ahead
        try:
            ahead = next(started, _END)
        except Exception:
            yield finish(item)
            raise
        yield finish(item)


class Copied(NamedTuple):
    """A batch on its way to the device."""

    batch: Any
    """The batch; it must not be read before the event."""
    event: torch.cuda.Event


class CopyStream:
    """Copies batches from page-locked memory to the device, in parallel to the computation there."""

    def __init__(self, device: torch.device, transfer: "Transfer") -> None:
        self._transfer = transfer
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> Copied:
        """Issue the copy of a batch. Its memory on the device is allocated in this stream."""
        if self._transfer.has_moved_objects:  # their memory cannot be marked as in use by the computation
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return Copied(self._transfer(batch), self._stream.record_event())

    def finish(self, started: tuple[MicroBatch, Copied]) -> tuple[MicroBatch, Any]:
        """Make the computation wait for its batch; this process does not wait."""
        micro_batch, (batch, event) = started
        computation = torch.cuda.current_stream(self._device)
        computation.wait_event(event)
        # otherwise a later copy could get this memory before the computation is done with it
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(computation)
        return micro_batch, batch


class Transfer:
    """Moves a batch to the model's device: tensors in any nesting that `map_tensors` knows, and objects with a method
    `to(device)`."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None, memory_format: torch.memory_format) -> None:
        self.device = device
        self.dtype = dtype
        self.memory_format = memory_format
        self.has_moved_objects = False
        """True once a batch held an object that moves itself: its tensors are not known."""
        self._nothing_to_do = device.type == "cpu" and dtype is None and memory_format == torch.contiguous_format

    def __call__(self, batch: Any) -> Any:
        return batch if self._nothing_to_do else map_tensors(batch, self._move_tensor, self._move_object)

    def _move_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else None
        layout = {"memory_format": self.memory_format} if tensor.dim() == 4 else {}
        return tensor.to(self.device, dtype, non_blocking=True, **layout)  # type: ignore[call-overload, no-any-return]

    def _move_object(self, value: Any) -> Any:
        self.has_moved_objects = True
        moved = value.to(self.device)
        moved = value if moved is None else moved  # it was moved in place
        return moved if self.dtype is None else map_tensors(moved, self._cast)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor
