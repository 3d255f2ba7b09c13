"""Batches of any size without their numbers, made from a few real samples."""

from collections.abc import Callable
from typing import Any

import torch

from paceline.config.batch_sizes import batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.build_data import require_steps
from paceline.engine.loading import SeededFetcher

PROBED = (2, 3)
"""Batches of so many samples tell which dimensions of a batch follow its size."""


class Samples:
    """What the training set of a config gives.

    Raises:
        EnvironmentFault: the data are not there.
        TrainingError: they make no global batch.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        sets = config.data.sets()
        self._validation = [SeededFetcher(each, 0, sets.collate_fn) for each in sets.validation.values()]
        self._fetcher = SeededFetcher(sets.train, config.seed, sets.collate_fn)
        self.samples = len(self._fetcher)
        require_steps(config, self.samples, batch_sizes(config).global_batch_size)

    def real(self, size: int) -> Any:
        """A batch of `size` samples, some of them more than once where there are fewer."""
        return self._fetcher.fetch(0, torch.arange(size) % self.samples)

    def kept_bytes(self) -> int:
        """What all samples of all sets take when they are kept."""
        one = _bytes(self.real(2)) / 2
        return round(one * (self.samples + sum(map(len, self._validation))))

    def maker(self) -> Callable[[int], Any]:
        """What makes a batch of `size` samples, in the mode that is active when it is called.

        Samples of different lengths, which a data set puts together by a rule of its own, are taken as long as the
        first ones.
        """
        few, more = map(self.real, PROBED)
        sizes = [(small.shape, large.shape) for small, large in zip(tensors_in(few), tensors_in(more), strict=True)]

        def make(size: int) -> Any:
            shapes = iter(sizes)
            return map_tensors(few, lambda tensor: _resized(tensor, next(shapes), size))

        return make


def _resized(like: torch.Tensor, shapes: tuple[torch.Size, torch.Size], size: int) -> torch.Tensor:
    small, large = shapes
    grown = [
        a * size // PROBED[0] if a != b and a * PROBED[1] == b * PROBED[0] else a
        for a, b in zip(small, large, strict=True)
    ]
    return torch.empty(grown, dtype=like.dtype)


def _bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))
