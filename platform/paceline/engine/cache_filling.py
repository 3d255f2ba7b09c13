"""Load all samples of a data set once, in this process or in loader processes, and check that they can be cached."""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch.utils.data import default_collate, get_worker_info

from paceline.engine.loading import BatchLoader, Fetcher, SeededFetcher
from paceline.engine.order import MicroBatch, mix
from paceline.engine.sample_trees import Unstackable, leaves_of, likeness, map_leaves, own_copy
from paceline.engine.seeding import seed_everything

CHUNK_SAMPLES = 64
"""Largest number of samples per fetch; smaller for small data sets, so that each loader process gets some chunks."""

_Generators = tuple[torch.Tensor, Any, Any]


class Refused(Exception):
    """The samples cannot be cached; `code` is the kind of reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoRoom(Exception):
    """The samples do not fit into memory."""


class _Chunk(NamedTuple):
    """Some samples on their way into the cache."""

    content: Any = None
    """One collated batch, or the list of samples in a form that can be sent."""
    likeness: str = ""
    """Description that all samples share, see `likeness`; empty if they are not collated."""
    unstackable: str = ""
    """Reason why the samples cannot be collated into one row each; empty if they can."""
    refusal: str = ""
    """Reason why the samples cannot be cached; empty if they can."""


class _Filler(Fetcher):
    """Loads samples for the cache, in this process or in a loader process.

    Problems with samples are returned, not raised: an exception leaves a loader process with its traceback in the
    message.
    """

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
        """Return the samples, and the names of the random generators that they have drawn from."""
        # compared once for all samples: getting numpy's state can take longer than loading a sample
        seed_everything(mix(self.source.seed, 0, indices[0]))
        untouched = _generators()
        loaded = (self.source.dataset[index] for index in indices)  # type: ignore[index]
        samples = [sample if self.stacks else own_copy(sample) for sample in loaded]
        return samples, _advanced(untouched, _generators())

    def _drawing(self, indices: list[int]) -> str:
        """Return a text that names the sample that draws random numbers."""
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
    """Return the states of the global CPU generators of torch, numpy and random."""
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def _advanced(before: _Generators, after: _Generators) -> list[str]:
    """Return the names of the generators whose state has changed."""
    same_numpy = np.array_equal(before[1][1], after[1][1]) and before[1][2:] == after[1][2:]
    same = {"torch": before[0].equal(after[0]), "numpy": same_numpy, "random": before[2] == after[2]}
    return [name for name, is_same in same.items() if not is_same]


def _collated(indices: list[int], samples: list[Any]) -> _Chunk:
    try:
        first, *others = map(likeness, samples)
    except Unstackable as reason:
        return _Chunk(unstackable=str(reason))
    for index, other in zip(indices[1:], others, strict=True):
        if other != first:
            return _Chunk(unstackable=_difference(index, other, first))
    content = default_collate(samples)
    if not all(type(leaf) is torch.Tensor and leaf.is_contiguous() for leaf in leaves_of(content)):
        return _Chunk(unstackable="it collates into more than plain tensors")
    return _Chunk(content, first)


def _difference(index: int, likeness: str, other: str) -> str:
    return f"sample {index} is a {likeness}, one before it a {other}"


def _sendable(samples: list[Any]) -> Any:
    """Return the samples, from a loader process as bytes: each tensor sent as such would keep a file open."""
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
    """Load all samples chunk by chunk, in order, with their ids; end the loader processes afterwards."""
    samples = len(filler)
    size = max(1, min(CHUNK_SAMPLES, samples // (4 * max(num_workers, 1))))
    # The first chunk has two samples: most data sets whose samples do not stack are found out by them, before many
    # samples are loaded that have to be loaded again.
    starts = [0, *range(2, samples, size), samples]
    order = [MicroBatch(torch.arange(*pair), samples) for pair in pairwise(starts)]
    loader = BatchLoader(filler, torch.device("cpu"), num_workers)
    try:
        yield ((micro_batch.ids, _checked(chunk)) for micro_batch, chunk in loader.load(0, order))
    finally:
        loader.close()


def _checked(chunk: _Chunk) -> _Chunk:
    if chunk.refusal:
        raise Refused(chunk.refusal, "random-sample")
    if chunk.unstackable:
        raise Unstackable(chunk.unstackable)
    return chunk


def load_all(fetcher: SeededFetcher, num_workers: int) -> list[Any]:
    """Load all samples and return them unchanged.

    Raises:
        Refused: a sample draws random numbers.
    """
    with _loading(_Filler(fetcher, stacks=False), num_workers) as chunks:
        return [sample for _, chunk in chunks for sample in _received(chunk.content)]


def load_rows(fetcher: SeededFetcher, device: torch.device | None, num_workers: int) -> Any:
    """Load all samples as rows of tensors, in the nesting of a collated batch: on `device`, or in memory.

    Raises:
        Refused: a sample draws random numbers.
        Unstackable: the samples cannot be rows of one tensor.
        NoRoom: the samples do not fit.
    """
    with _loading(_Filler(fetcher, stacks=True), num_workers) as chunks:
        first_ids, first = next(chunks)
        rows = _room(first.content, len(fetcher), device)
        _write(rows, first_ids, first.content)
        for ids, chunk in chunks:
            if chunk.likeness != first.likeness:
                raise Unstackable(_difference(int(ids[0]), chunk.likeness, first.likeness))
            _require_room(rows, len(fetcher) - int(ids[0]))
            _write(rows, ids, chunk.content)
    return rows


def _room(batch: Any, samples: int, device: torch.device | None) -> Any:
    """Return uninitialised tensors for all samples, in the nesting of a batch of some of them."""
    if device is None or device.type == "cpu":  # torch itself raises when a GPU is full
        _require_room(batch, samples)
    return map_leaves(lambda leaf: leaf.new_empty((samples, *leaf.shape[1:]), device=device), batch)


def _require_room(rows: Any, samples: int) -> None:
    # Checked for every chunk, since other processes fill memory too: all workers of this machine load everything.
    needed = samples * sum(leaf[:1].nbytes for leaf in leaves_of(rows) if leaf.device.type == "cpu")
    available = psutil.virtual_memory().available
    if needed > available:
        raise NoRoom(f"it takes {needed / 2**30:.1f} GiB more of memory, and {available / 2**30:.1f} are available")


def _write(rows: Any, ids: torch.Tensor, batch: Any) -> None:
    for target, source in zip(leaves_of(rows), leaves_of(batch), strict=True):
        target[int(ids[0]) : int(ids[-1]) + 1] = source
