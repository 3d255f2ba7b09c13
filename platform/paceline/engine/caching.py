"""Samples that are loaded once, before training, and kept: in this process's memory or on its device.

What a batch holds stays the same to the bit. That rests on two things, both checked while the samples are loaded: a
sample draws no random numbers, and it has the structure, types and shapes of the others, so that rows of one large
tensor are what collating the samples gives. Samples that differ, or have a `collate_fn`, are kept one by one instead.
"""

import copy
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import default_collate

from paceline.data._tensors import TensorData
from paceline.engine.cache_filling import NoRoom, Refused, load_all, load_rows
from paceline.engine.collation import collated
from paceline.engine.loading import Fetcher, SeededFetcher, SlicedDataset
from paceline.engine.sample_trees import Unstackable, map_leaves, own_copy
from paceline.engine.seeding import seed_collation
from paceline.errors import EnvironmentFault, UnusableCode


@runtime_checkable
class MovableSlicedDataset(SlicedDataset, Protocol):
    """A sliced data set that can be put on a device."""

    def to(self, device: torch.device) -> SlicedDataset:
        """The same data set, whose `batch` takes ids on `device` and gives the batch there."""


def cached(
    fetcher: SeededFetcher, cache: str, device: torch.device, num_workers: int = 0, role: str = "training"
) -> Fetcher:
    """A fetcher that gives the same batches, from samples that are loaded here and now, each of them once.

    Data sets that give whole batches have them in memory already: for `memory` they are left alone.

    Args:
        fetcher: loads the samples.
        cache: `none`, `memory` or `device`, as in `data.cache`.
        device: where `device` keeps the samples and gives the batches.
        num_workers: loader processes that load the samples, and end when all are there.
        role: which set it is, for messages.

    Raises:
        UnusableCode: a sample is random, or cannot be kept on a device.
        EnvironmentFault: the samples do not fit into memory.
    """
    if cache == "none" or not len(fetcher) or (fetcher.is_sliced and cache == "memory"):
        return fetcher
    try:
        return _on_device(fetcher, device, num_workers) if cache == "device" else _in_memory(fetcher, num_workers)
    except Refused as refusal:
        raise UnusableCode(
            f"data.cache: {cache}: the {role} set: {refusal}", refusal.code, cache=cache, role=role
        ) from None
    except (NoRoom, MemoryError, torch.OutOfMemoryError) as error:
        reason = str(error).partition(". GPU")[0] or "out of memory"
        raise EnvironmentFault(
            f"data.cache: {cache}: the {role} set does not fit: {reason}; write data.cache: none",
            "cache-too-large",
            cache=cache,
            role=role,
        ) from error


def _in_memory(fetcher: SeededFetcher, num_workers: int) -> Fetcher:
    if fetcher.collate is default_collate:
        try:
            return StackedSamples(load_rows(fetcher, None, num_workers), len(fetcher), None)
        except Unstackable:
            pass
    return KeptSamples(fetcher, load_all(fetcher, num_workers))


def _on_device(fetcher: SeededFetcher, device: torch.device, num_workers: int) -> Fetcher:
    if fetcher.is_sliced:
        return SlicesOnDevice(_moved(fetcher.dataset, device), fetcher.seed, device)
    try:
        if fetcher.collate is not default_collate:
            raise Unstackable("it has a collate_fn of its own")
        return StackedSamples(load_rows(fetcher, device, num_workers), len(fetcher), device)
    except Unstackable as reason:
        raise Refused(
            f"{reason}, and a device keeps rows of tensors only; write data.cache: memory", "not-stackable"
        ) from None


def _moved(dataset: Any, device: torch.device) -> SlicedDataset:
    if isinstance(dataset, MovableSlicedDataset):
        return dataset.to(device)
    # a subclass with a `batch` of its own may hold more than the tensors
    if not isinstance(dataset, TensorData) or type(dataset).batch is not TensorData.batch:
        raise Refused(
            f"{type(dataset).__name__} gives whole batches, and has no method `to(device)` that returns it with its "
            "tensors there; give it one, or write data.cache: none",
            "not-movable",
        )
    moved = copy.copy(dataset)
    moved.tensors = tuple(tensor.to(device) for tensor in dataset.tensors)
    return moved


class SlicesOnDevice(Fetcher):
    """The batches of a sliced data set that is on a device; augmentation runs there as well."""

    needs_processes = False  # and a forked one could not use CUDA
    is_on_device = True

    def __init__(self, dataset: SlicedDataset, seed: int, device: torch.device) -> None:
        self.dataset = dataset
        self.seed = seed
        self.device = device

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, epoch: int, ids: torch.Tensor) -> Any:
        return self.dataset.batch(_without_waiting(ids, self.device), self.seed, epoch)


class StackedSamples(Fetcher):
    """Batches cut out of tensors that hold all samples, one a row."""

    needs_processes = False  # cutting a batch out takes less time than sending it

    def __init__(self, rows: Any, samples: int, device: torch.device | None) -> None:
        """Args:
        rows: tensors of shape [samples, ...], in the nesting of a collated batch.
        samples: how many there are; a sample may hold no tensor at all.
        device: where the tensors are; None for memory.
        """
        self.rows = rows
        self.samples = samples
        self.device = device
        self.is_on_device = device is not None

    def __len__(self) -> int:
        return self.samples

    def fetch(self, epoch: int, ids: torch.Tensor) -> Any:
        places = ids if self.device is None else _without_waiting(ids, self.device)
        return map_leaves(lambda rows: rows.index_select(0, places), self.rows)


class KeptSamples(Fetcher):
    """Batches collated from samples that are kept as they are."""

    def __init__(self, fetcher: SeededFetcher, samples: list[Any]) -> None:
        self.samples = samples
        self.seed = fetcher.seed
        self.collate = fetcher.collate

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, epoch: int, ids: torch.Tensor) -> Any:
        chosen = [self.samples[index] for index in ids.tolist()]
        if self.collate is default_collate:
            return collated(self.collate, chosen)
        seed_collation(self.seed, epoch, ids)
        # the user's function may change the samples
        return self.collate([own_copy(sample) for sample in chosen])


def _without_waiting(ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    # a copy from memory that is not page-locked would wait for all that the device has still to do
    return (ids.pin_memory() if device.type == "cuda" else ids).to(device, non_blocking=True)
