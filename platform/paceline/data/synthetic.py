"""Random data that can be learned, for measurements and trials without any files."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from paceline.data.base import Count, DataConfig, Sizes

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

_SEED = 0
_COARSE = 4
"""A class's pattern has at most this many different values along each dimension."""


class SyntheticConfig(DataConfig):
    """Standard normal noise on top of a pattern for each class, so that accuracy rises as with real data.

    The same numbers whatever the run's seed. Held in memory: 4 bytes a number.
    """

    name: Literal["synthetic"]
    """Selects this data set."""
    shape: Annotated[list[Count], Field(min_length=1, default_factory=lambda: [3, 32, 32])]
    """Shape of one sample, such as [channels, height, width]; each at least 1."""
    num_classes: Annotated[int, Field(ge=2)] = 10
    """Number of classes, at least 2."""
    num_samples: Count = 1024
    """Training samples, at least 1."""
    num_validation_samples: Count = 256
    """Validation samples, at least 1."""

    def sizes(self) -> Sizes:
        """As the two fields say."""
        return Sizes(self.num_samples, self.num_validation_samples)

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets: float32 samples of `shape`, int64 classes in turn."""
        import torch

        from paceline.data._tensors import TensorData

        generator = torch.Generator().manual_seed(_SEED)
        means = _patterns(self.num_classes, self.shape, generator)
        return (
            TensorData(*_samples(self.num_samples, means, generator)),
            TensorData(*_samples(self.num_validation_samples, means, generator)),
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
