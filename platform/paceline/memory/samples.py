"""Batches of any size without their numbers, made from a few real samples."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import torch

from paceline.config.batch_sizes import largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.engine.batches import fields_of, is_dataclass, map_tensors, tensors_in
from paceline.engine.build_data import require_steps
from paceline.engine.loading import SeededFetcher

PROBED = (2, 3)
"""Batches of so many samples tell which dimensions of a batch follow its size. Where the collation refuses them, those
of a micro-batch and of two do; where it takes a micro-batch alone, each first dimension is taken to follow."""
MAX_SAMPLES_COMPARED = 64
"""Samples whose lengths are compared, from all parts of the training set."""
MAX_READING_SECONDS = 5.0
"""Seconds after which no more of them are read, if reading is slow."""


class Samples:
    """Samples of the training set of a config.

    Raises:
        EnvironmentFault: the data are not there.
        TrainingError: they make no global batch.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        sets = DataConfig.of(config.data).sets()
        self._validation = [SeededFetcher(each, 0, sets.collate_fn) for each in sets.validation.values()]
        self._fetcher = SeededFetcher(sets.train, config.seed, sets.collate_fn)
        self.samples = len(self._fetcher)
        self._micro_batch = _micro_batch(config)
        require_steps(config, self.samples, largest_sizes(config).global_batch_size)
        self._longest = _longest(self._fetcher)

    def real(self, size: int) -> Any:
        """Return a batch of `size` samples. It is the longest one many times if samples are padded to the longest of
        their batch, as training meets it at some step; else it is the first ones."""
        return self.first(size) if self._longest is None else self._fetch([self._longest] * size)

    def first(self, size: int) -> Any:
        """Return a batch of the first samples, some of them more than once where there are fewer than `size`."""
        return self._fetch([index % self.samples for index in range(size)])

    def _fetch(self, ids: list[int]) -> Any:
        return self._fetcher.fetch(0, torch.tensor(ids))

    def kept_bytes(self) -> int:
        """Bytes of all samples of all sets, when they are kept."""
        (size, batch), _ = self._probed(self.first)
        one = _bytes(batch) / size
        return round(one * (self.samples + sum(map(len, self._validation))))

    def maker(self, real: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return a function that makes a batch of `size` samples, in the mode that is active when it is called.

        Args:
            real: `real` or `first`: makes the batches that are imitated.
        """
        (small, few), (large, more) = self._probed(real)
        growing = [
            _growing(one.shape, other.shape, small, large)
            for one, other in zip(tensors_in(few), tensors_in(more), strict=True)
        ]

        def make(size: int) -> Any:
            follows = iter(growing)
            return map_tensors(few, lambda tensor: _resized(tensor, next(follows), small, size))

        return make

    def _probed(self, real: Callable[[int], Any]) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """Return two batches with their sizes, the second of which may be the first again.

        Raises:
            Exception: the collation raises it for a micro-batch, too.
        """
        size = self._micro_batch
        for small, large in (PROBED, (size, 2 * size)):
            try:
                return (small, real(small)), (large, real(large))
            except Exception:  # a collation may refuse a size in any way; what is wrong in all cases is raised below
                continue
        batch = real(size)
        return (size, batch), (size, batch)


def _longest(fetcher: SeededFetcher) -> int | None:
    """Return the longest of some samples, if samples differ in length and are padded to the longest of their batch."""
    if fetcher.is_sliced:
        return None
    lengths = _lengths(fetcher)
    if len(set(lengths.values())) < 2:
        return None
    longest, shortest = (choose(lengths, key=lambda index: lengths[index]) for choose in (max, min))
    try:
        both, same = (fetcher.fetch(0, torch.tensor([longest, other])) for other in (shortest, longest))
    except Exception:  # a collation may refuse two samples in any way; that of a micro-batch is tried later
        return None
    is_padded = [tensor.shape for tensor in tensors_in(both)] == [tensor.shape for tensor in tensors_in(same)]
    return longest if is_padded else None


def _lengths(fetcher: SeededFetcher) -> dict[int, int]:
    """Return the lengths of some samples by their ids, in random order."""
    count = min(MAX_SAMPLES_COMPARED, len(fetcher))
    ids = [number * len(fetcher) // count for number in range(count)]
    random.Random(0).shuffle(ids)  # of a sorted set that is slow to read, the first ones would not do
    lengths: dict[int, int] = {}
    begun = monotonic()
    for index in ids:
        if monotonic() - begun > MAX_READING_SECONDS:
            break
        with suppress(Exception):  # lint and training find samples that cannot be read
            (sample,) = fetcher.samples(0, torch.tensor([index]))
            lengths[index] = _num_elements(sample) or _num_elements(sample, texts=True)
    return lengths


def _num_elements(sample: Any, texts: bool = False) -> int:
    """Return the number of elements of a sample's tensors, arrays and lists; with `texts`, of its characters too."""
    if isinstance(sample, str | bytes):
        return len(sample) if texts else 0
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if isinstance(sample, Mapping):
        return sum(_num_elements(value, texts) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(_num_elements(value, texts) for value in sample)
    if is_dataclass(sample):
        return sum(_num_elements(value, texts) for _, value in fields_of(sample))
    size = getattr(sample, "size", None)  # NumPy's arrays
    return size if isinstance(size, int) else 1


def _micro_batch(config: ExperimentConfig) -> int:
    sizes = largest_sizes(config)
    return sizes.micro_batch_size or -(-sizes.global_batch_size // sizes.world_size)


def _growing(one: torch.Size, other: torch.Size, small: int, large: int) -> list[bool]:
    """Return True if each dimension follows the number of samples, given the shapes for two of them."""
    if small == large:
        return [place == 0 and length % small == 0 for place, length in enumerate(one)]
    return [a != b and a * large == b * small for a, b in zip(one, other, strict=True)]


def _resized(like: torch.Tensor, follows: list[bool], small: int, size: int) -> torch.Tensor:
    grown = [length * size // small if grows else length for length, grows in zip(like.shape, follows, strict=True)]
    return torch.empty(grown, dtype=like.dtype)


def _bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))
