"""Batches of any size without their numbers, made from a few real samples."""

from collections.abc import Callable, Mapping, Sized
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
LOOKED_AT = 64
"""Samples whose lengths are compared, spread evenly over the training set."""
LOOKING_SECONDS = 5.0
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
        self._longest = _longest_first(self._fetcher)
        self._micro_batch = _micro_batch(config)
        require_steps(config, self.samples, largest_sizes(config).global_batch_size)

    def real(self, size: int) -> Any:
        """A batch of `size` samples, the longest first, some of them more than once."""
        ids = torch.cat((self._longest[:size], torch.arange(size - len(self._longest[:size])) % self.samples))
        return self._fetcher.fetch(0, ids)

    def kept_bytes(self) -> int:
        """Bytes of all samples of all sets, when they are kept."""
        (size, batch), _ = self._probed()
        one = _bytes(batch) / size
        return round(one * (self.samples + sum(map(len, self._validation))))

    def maker(self) -> Callable[[int], Any]:
        """Return a function that makes a batch of `size` samples, in the mode that is active when it is called.

        Samples of different lengths, which a data set puts together by a rule of its own, are taken as long as the
        longest ones of those that are looked at: training meets them at some step.
        """
        (small, few), (large, more) = self._probed()
        growing = [
            _growing(one.shape, other.shape, small, large)
            for one, other in zip(tensors_in(few), tensors_in(more), strict=True)
        ]

        def make(size: int) -> Any:
            follows = iter(growing)
            return map_tensors(few, lambda tensor: _resized(tensor, next(follows), small, size))

        return make

    def _probed(self) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """Two batches with their sizes, the second of which may be the first again.

        Raises:
            Exception: the collation raises it for a micro-batch, too.
        """
        size = self._micro_batch
        for small, large in (PROBED, (size, 2 * size)):
            try:
                return (small, self.real(small)), (large, self.real(large))
            except Exception:  # a collation may refuse a size in any way; what is wrong in all cases is raised below
                continue
        batch = self.real(size)
        return (size, batch), (size, batch)


def _longest_first(fetcher: SeededFetcher) -> torch.Tensor:
    """Return the ids of some samples, the longest first; none where no sample looked at is longer than another."""
    none = torch.empty(0, dtype=torch.int64)
    if fetcher.is_sliced or len(fetcher) == 0:
        return none
    looked_at = min(LOOKED_AT, len(fetcher))
    lengths: dict[int, int] = {}
    begun = monotonic()
    for index in (torch.arange(looked_at) * len(fetcher) // looked_at).tolist():
        if monotonic() - begun > LOOKING_SECONDS:
            break
        with suppress(Exception):  # lint and training find samples that cannot be read
            (sample,) = fetcher.samples(0, torch.tensor([index]))
            lengths[index] = _length(sample)
    if len(set(lengths.values())) < 2:
        return none
    return torch.tensor(sorted(lengths, key=lambda index: -lengths[index]))


def _length(sample: Any) -> int:
    """Return the number of elements in a sample: of its tensors, arrays and lists, and of characters in its texts."""
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if isinstance(sample, Mapping):
        return sum(map(_length, sample.values()))
    if isinstance(sample, list | tuple):
        return sum(map(_length, sample))
    if is_dataclass(sample):
        return sum(_length(value) for _, value in fields_of(sample))
    size = getattr(sample, "size", None)  # NumPy's arrays
    if isinstance(size, int):
        return size
    return len(sample) if isinstance(sample, Sized) else 1


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
