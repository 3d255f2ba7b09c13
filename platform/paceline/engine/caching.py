"""Samples that are loaded once, before training, and kept: in this process's memory or on its device.

What a batch holds stays the same to the bit. That rests on two things, both checked while the samples are loaded: a
sample draws no random numbers, and it has the structure, types and shapes of the others, so that rows of one large
tensor are what collating the samples gives. Samples that differ, or have a `collate_fn`, are kept one by one instead.
"""

import copy
import io
import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import psutil
import torch
from torch.utils.data import default_collate, get_worker_info

from paceline.data._tensors import TensorData
from paceline.engine.loading import BatchLoader, Fetcher, SeededFetcher, SlicedDataset, seed_everything
from paceline.engine.order import MicroBatch, mix
from paceline.errors import EnvironmentFault, UnusableCode

CHUNK_SAMPLES = 64
"""Samples that are fetched at a time at most; fewer where there would not be some chunks for every loader process."""

_Generators = tuple[torch.Tensor, Any, Any]


@runtime_checkable
class MovableSlicedDataset(SlicedDataset, Protocol):
    """A sliced data set that can be put on a device."""

    def to(self, device: torch.device) -> SlicedDataset:
        """The same data set, whose `batch` takes ids on `device` and gives the batch there."""


class _Refused(Exception):
    """The samples cannot be kept."""


class _Unstackable(Exception):
    """The samples cannot be rows of one tensor."""


class _NoRoom(Exception):
    """The samples do not fit."""


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
    except _Refused as refusal:
        raise UnusableCode(f"data.cache: {cache}: the {role} set: {refusal}") from None
    except (_NoRoom, MemoryError, torch.OutOfMemoryError) as error:
        reason = str(error).partition(". GPU")[0] or "out of memory"
        raise EnvironmentFault(
            f"data.cache: {cache}: the {role} set does not fit: {reason}; write data.cache: none"
        ) from error


def _in_memory(fetcher: SeededFetcher, num_workers: int) -> Fetcher:
    if fetcher.collate is default_collate:
        try:
            return _stack(fetcher, None, num_workers)
        except _Unstackable:
            pass
    return KeptSamples(fetcher, _load_all(fetcher, num_workers))


def _on_device(fetcher: SeededFetcher, device: torch.device, num_workers: int) -> Fetcher:
    if fetcher.is_sliced:
        return SlicesOnDevice(_moved(fetcher.dataset, device), fetcher.seed, device)
    try:
        if fetcher.collate is not default_collate:
            raise _Unstackable("it has a collate_fn of its own")
        return _stack(fetcher, device, num_workers)
    except _Unstackable as reason:
        raise _Refused(f"{reason}, and a device keeps rows of tensors only; write data.cache: memory") from None


def _moved(dataset: Any, device: torch.device) -> SlicedDataset:
    if isinstance(dataset, MovableSlicedDataset):
        return dataset.to(device)
    # a subclass with a `batch` of its own may hold more than the tensors
    if not isinstance(dataset, TensorData) or type(dataset).batch is not TensorData.batch:
        raise _Refused(
            f"{type(dataset).__name__} gives whole batches, and has no method `to(device)` that returns it with its "
            "tensors there; give it one, or write data.cache: none"
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
        return _map(lambda rows: rows.index_select(0, places), self.rows)


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
            return self.collate(chosen)
        # The user's function may change the samples, and may draw: then from where loading the last one left off.
        seed_everything(mix(self.seed, epoch, int(ids[-1])))
        return self.collate([_own(sample) for sample in chosen])


def _without_waiting(ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    # a copy from memory that is not page-locked would wait for all that the device has still to do
    return (ids.pin_memory() if device.type == "cuda" else ids).to(device, non_blocking=True)


class _Chunk(NamedTuple):
    """Some samples on their way into the cache."""

    content: Any = None
    """One collated batch, or the list of samples in a form that can be sent."""
    likeness: str = ""
    """What all of them look like, where they are collated."""
    unstackable: str = ""
    """Why they cannot be collated such that rows stand for samples; empty when they can."""
    refusal: str = ""
    """Why they cannot be kept; empty when they can."""


class _Filler(Fetcher):
    """Loads samples for the cache, in this process or in a loader process. What is wrong with them is not raised here:
    an exception comes out of a loader process with its traceback in the message."""

    def __init__(self, source: SeededFetcher, stacks: bool) -> None:
        self.source = source
        self.stacks = stacks

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, epoch: int, ids: torch.Tensor) -> _Chunk:
        indices: list[int] = ids.tolist()
        samples, drawn = self._load(indices)
        if drawn:
            return _Chunk(refusal=_randomness(self._drawing(indices), drawn))
        return _collated(indices, samples) if self.stacks else _Chunk(_sendable(samples))

    def _load(self, indices: list[int]) -> tuple[list[Any], list[str]]:
        """Samples, and the generators that they have drawn from."""
        # compared once for all: to get numpy's state can take longer than to load a sample
        seed_everything(mix(self.source.seed, 0, indices[0]))
        untouched = _generators()
        loaded = (self.source.dataset[index] for index in indices)  # type: ignore[index]
        samples = [sample if self.stacks else _own(sample) for sample in loaded]
        return samples, _advanced(untouched, _generators())

    def _drawing(self, indices: list[int]) -> str:
        """Which of some samples draws."""
        for index in indices:
            if self._load([index])[1]:
                return f"sample {index}"
        return f"one of the samples {indices[0]} to {indices[-1]}"


def _randomness(which: str, drawn: list[str]) -> str:
    return (
        f"{which} draws random numbers from the generator of {' and '.join(drawn)}, so it differs from epoch to epoch, "
        "which a sample that is kept would not; write data.cache: none"
    )


def _generators() -> _Generators:
    """The states of the global CPU generators of torch, numpy and random."""
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def _advanced(before: _Generators, after: _Generators) -> list[str]:
    """Whose state has changed."""
    same_numpy = np.array_equal(before[1][1], after[1][1]) and before[1][2:] == after[1][2:]
    same = {"torch": before[0].equal(after[0]), "numpy": same_numpy, "random": before[2] == after[2]}
    return [name for name, is_same in same.items() if not is_same]


def _collated(indices: list[int], samples: list[Any]) -> _Chunk:
    try:
        first, *others = map(_likeness, samples)
    except _Unstackable as reason:
        return _Chunk(unstackable=str(reason))
    for index, other in zip(indices[1:], others, strict=True):
        if other != first:
            return _Chunk(unstackable=_difference(index, other, first))
    content = default_collate(samples)
    if not all(type(leaf) is torch.Tensor and leaf.is_contiguous() for leaf in _leaves(content)):
        return _Chunk(unstackable="it collates into more than plain tensors")
    return _Chunk(content, first)


def _difference(index: int, likeness: str, other: str) -> str:
    return f"sample {index} is a {likeness}, one before it a {other}"


def _likeness(sample: Any) -> str:
    """Structure, types and shapes of a sample. Samples that are alike collate into the same rows, whichever of them
    stand together.

    Raises:
        _Unstackable: it holds something that depends on its neighbours, or is no number.
    """
    kind = type(sample)
    if (
        isinstance(sample, torch.Tensor)
        and sample.layout is torch.strided
        and not (sample.is_nested or sample.requires_grad)
    ):
        return f"{kind.__name__} {str(sample.dtype).removeprefix('torch.')} {list(sample.shape)}"
    if isinstance(sample, np.ndarray) and sample.dtype.kind in "biufc":
        return f"{kind.__name__} {sample.dtype} {list(sample.shape)}"
    if kind in (bool, int, float) or isinstance(sample, np.number | np.bool_):
        return kind.__name__
    if _is_mapping(sample):
        return f"{kind.__name__}({', '.join(f'{key!r}: {_likeness(item)}' for key, item in sample.items())})"
    if _is_row(sample):
        return f"{kind.__name__}({', '.join(map(_likeness, sample))})"
    raise _Unstackable(f"its samples hold a {kind.__name__}")


# Others than these may carry more than their items, which collating takes from the first sample of a batch.


def _is_mapping(value: Any) -> bool:
    return type(value) in (dict, OrderedDict, defaultdict)


def _is_row(value: Any) -> bool:
    return type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function` applied to whatever its mappings, lists and tuples hold."""
    if _is_mapping(value):
        items = copy.copy(value)
        items.update((key, _map(function, item)) for key, item in value.items())
        return items
    if _is_row(value):
        items = [_map(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


def _leaves(value: Any) -> Iterator[Any]:
    """Whatever the mappings, lists and tuples in `value` hold."""
    if _is_mapping(value) or _is_row(value):
        for item in value.values() if _is_mapping(value) else value:
            yield from _leaves(item)
    else:
        yield value


def _own(sample: Any) -> Any:
    """A copy that shares no memory with the sample, nor holds more than it: a view's copy would hold all it views."""
    return _map(_own_leaf, sample)


def _own_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)


def _sendable(samples: list[Any]) -> Any:
    """From a loader process: bytes, since each tensor sent as such keeps a file open for as long as it lives."""
    if get_worker_info() is None:
        return samples
    file = io.BytesIO()
    torch.save(samples, file)
    return file.getvalue()


def _received(content: Any) -> list[Any]:
    samples: list[Any] = torch.load(io.BytesIO(content), weights_only=False) if type(content) is bytes else content
    return samples


@contextmanager
def _loading(filler: _Filler, num_workers: int) -> Iterator[Iterator[tuple[torch.Tensor, _Chunk]]]:
    """All samples, chunk by chunk in their order, with their ids; ends the loader processes."""
    samples = len(filler)
    size = max(1, min(CHUNK_SAMPLES, samples // (4 * max(num_workers, 1))))
    # two first: most samples that do not stack are found out by them, before many are loaded that have to be again
    starts = [0, *range(2, samples, size), samples]
    order = [MicroBatch(torch.arange(*pair), samples) for pair in pairwise(starts)]
    loader = BatchLoader(filler, torch.device("cpu"), num_workers)
    try:
        yield ((micro_batch.ids, _checked(chunk)) for micro_batch, chunk in loader.load(0, order))
    finally:
        loader.close()


def _checked(chunk: _Chunk) -> _Chunk:
    if chunk.refusal:
        raise _Refused(chunk.refusal)
    if chunk.unstackable:
        raise _Unstackable(chunk.unstackable)
    return chunk


def _load_all(fetcher: SeededFetcher, num_workers: int) -> list[Any]:
    with _loading(_Filler(fetcher, stacks=False), num_workers) as chunks:
        return [sample for _, chunk in chunks for sample in _received(chunk.content)]


def _stack(fetcher: SeededFetcher, device: torch.device | None, num_workers: int) -> StackedSamples:
    with _loading(_Filler(fetcher, stacks=True), num_workers) as chunks:
        first_ids, first = next(chunks)
        rows = _room(first.content, len(fetcher), device)
        _write(rows, first_ids, first.content)
        for ids, chunk in chunks:
            if chunk.likeness != first.likeness:
                raise _Unstackable(_difference(int(ids[0]), chunk.likeness, first.likeness))
            _require_room(rows, len(fetcher) - int(ids[0]))
            _write(rows, ids, chunk.content)
    return StackedSamples(rows, len(fetcher), device)


def _room(batch: Any, samples: int, device: torch.device | None) -> Any:
    """Tensors for all samples, in the nesting of a batch of some of them; their contents are yet to come."""
    if device is None or device.type == "cpu":  # torch itself tells when a GPU has no room
        _require_room(batch, samples)
    return _map(lambda leaf: leaf.new_empty((samples, *leaf.shape[1:]), device=device), batch)


def _require_room(rows: Any, samples: int) -> None:
    # Asked again and again, since others fill their memory too: the workers of this machine all load everything.
    needed = samples * sum(leaf[:1].nbytes for leaf in _leaves(rows) if leaf.device.type == "cpu")
    available = psutil.virtual_memory().available
    if needed > available:
        raise _NoRoom(f"it takes {needed / 2**30:.1f} GiB more of memory, and {available / 2**30:.1f} are available")


def _write(rows: Any, ids: torch.Tensor, batch: Any) -> None:
    for target, source in zip(_leaves(rows), _leaves(batch), strict=True):
        target[int(ids[0]) : int(ids[-1]) + 1] = source
