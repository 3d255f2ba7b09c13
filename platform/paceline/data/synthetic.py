"""Random data that can be learned, for measurements and trials without any files."""

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from paceline.config.data import Sizes
from paceline.config.limits import Samples, Width
from paceline.data.base import DataConfig
from paceline.errors import EnvironmentFault

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

_SEED = 0
_BYTES = 4
_LARGEST = 2**40
"""Bytes that each of the tensors may take: 1 TiB."""
_COARSE = 4
"""A class's pattern has at most this many different values along each dimension."""


def _check_size(count: int, info: ValidationInfo) -> int:
    shape = info.data.get("shape")
    if shape is not None and _bytes(count, shape) > _LARGEST:
        needed = _bytes(count, shape) / 2**40
        raise ValueError(f"{count:,} times the shape {shape} takes {needed:,.1f} TiB, more than the 1 TiB allowed")
    return count


def _bytes(count: int, shape: list[int]) -> int:
    return _BYTES * count * math.prod(shape)


_InMemory = AfterValidator(_check_size)


class SyntheticConfig(DataConfig):
    """Standard normal noise on top of a pattern for each class, so that accuracy rises as with real data.

    The same numbers whatever the run's seed. Held in memory: 4 bytes a number, and at most 1 TiB for the training
    samples, the validation samples and the classes' patterns each.
    """

    is_in_memory: ClassVar[bool] = True

    name: Literal["synthetic"]
    """Selects this data set."""
    shape: Annotated[list[Width], Field(min_length=1, max_length=8, default_factory=lambda: [3, 32, 32])]
    """Shape of one sample, such as [channels, height, width]: 1 to 8 numbers of 1 to 10^7."""
    num_classes: Annotated[int, Field(ge=2, le=10**7, validate_default=True), _InMemory] = 10
    """Number of classes, 2 to 10^7."""
    num_samples: Annotated[Samples, Field(validate_default=True), _InMemory] = 1024
    """Training samples, 1 to 2^31 - 1."""
    num_validation_samples: Annotated[Samples, Field(validate_default=True), _InMemory] = 256
    """Validation samples, 1 to 2^31 - 1."""

    def sizes(self) -> Sizes:
        """As the two fields say."""
        return Sizes(self.num_samples, self.num_validation_samples)

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets: float32 samples of `shape`, int64 classes in turn.

        Raises:
            EnvironmentFault: they are larger than this machine's memory.
        """
        import torch

        from paceline.data._tensors import TensorData

        self._check_memory()
        generator = torch.Generator().manual_seed(_SEED)
        means = _patterns(self.num_classes, self.shape, generator)
        return (
            TensorData(*_samples(self.num_samples, means, generator)),
            TensorData(*_samples(self.num_validation_samples, means, generator)),
        )

    def _check_memory(self) -> None:
        import psutil

        needed = _bytes(self.num_samples + self.num_validation_samples + self.num_classes, self.shape) / 2**30
        available = psutil.virtual_memory().total / 2**30
        if needed > available:
            raise EnvironmentFault(
                f"data synthetic: takes {needed:,.1f} GiB, this machine has {available:,.1f}: "
                "lower data.num_samples or data.shape",
                "data-too-large",
                needed_gib=needed,
                available_gib=available,
            )


def _patterns(count: int, shape: list[int], generator: "torch.Generator") -> "torch.Tensor":
    """A coarse pattern for each class: convolutions with global pooling cannot tell fine noise apart."""
    import torch

    patterns = torch.randn(count, *(min(size, _COARSE) for size in shape), generator=generator)
    for dim, size in enumerate(shape, start=1):
        patterns = patterns.index_select(dim, torch.arange(size) * patterns.shape[dim] // size)
    return patterns


def _samples(count: int, means: "torch.Tensor", generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    targets = torch.arange(count) % len(means)
    inputs = torch.randn(count, *means.shape[1:], generator=generator)
    return inputs.add_(means[targets]), targets
