"""A data set that is held in memory as tensors, and sliced by the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from paceline.data._augment import augment
from paceline.data.augmentation import AugmentationConfig


class Pixels:
    """Turns images of bytes into what a model takes: scaled, normalised, and resized if asked for."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: int | None = None) -> None:
        """Args:
        mean: of each channel, for pixels in [0, 1].
        std: standard deviation of each channel, likewise.
        size: height and width to resize to; None keeps the images' own.
        """
        self.size = size
        self.scale = torch.tensor([1 / (255 * deviation) for deviation in std]).view(-1, 1, 1)
        self.shift = torch.tensor([-m / deviation for m, deviation in zip(mean, std, strict=True)]).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """float32 of shape [n, channels, height, width] from uint8 of that shape."""
        inputs = images.float()
        if self.size is not None and inputs.shape[-2:] != (self.size, self.size):
            inputs = F.interpolate(inputs, (self.size, self.size), mode="bilinear", antialias=True)
        if self.scale.device != images.device:
            self.scale, self.shift = self.scale.to(images.device), self.shift.to(images.device)
        return inputs.mul_(self.scale).add_(self.shift)


class TensorData(Dataset[tuple[Tensor, ...]]):
    """Tensors of equal length, samples first. `batch` takes a whole batch at once, which costs far less than items."""

    def __init__(
        self, *tensors: Tensor, pixels: Pixels | None = None, augmentation: AugmentationConfig | None = None
    ) -> None:
        """Args:
        tensors: the inputs first, then the targets; sample i is the i-th row of each. All on one device.
        pixels: turns a batch of the first tensor into model inputs; None hands it out as it is.
        augmentation: random changes of the first tensor, made in `batch` only; None for validation.
        """
        if len({len(tensor) for tensor in tensors}) != 1:
            raise ValueError(f"tensors must be of equal length, not {[len(tensor) for tensor in tensors]}")
        self.tensors = tensors
        self.pixels = pixels
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Sample `index`, never augmented: that takes a seed and an epoch, which only `batch` is given."""
        first, *others = (tensor[index] for tensor in self.tensors)
        return (first if self.pixels is None else self.pixels(first[None])[0], *others)

    def batch(self, ids: Tensor, seed: int, epoch: int) -> tuple[Tensor, ...]:
        """The samples `ids`, each of which depends on (seed, epoch, its id) alone.

        Args:
            ids: int64 of shape [n], indices into the data set.
            seed: the run's seed.
            epoch: the epoch, counted from 0.

        Returns:
            One tensor with n rows for each tensor held, on its device.
        """
        rows = ids.to(self.tensors[0].device)
        first, *others = (tensor.index_select(0, rows) for tensor in self.tensors)
        if self.augmentation is not None:
            first = augment(first, self.augmentation, seed, epoch, ids)
        return (first if self.pixels is None else self.pixels(first), *others)
