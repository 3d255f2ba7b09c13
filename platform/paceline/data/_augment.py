"""Random crop and flip of a whole batch at once."""

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.data._random import uniforms
from paceline.data.augmentation import AugmentationConfig


def augment(images: Tensor, config: AugmentationConfig, seed: int, epoch: int, ids: Tensor) -> Tensor:
    """Shift and mirror each image as (seed, epoch, its id) decide.

    Args:
        images: shape [n, channels, height, width], any dtype; zero is black.
        config: what may be done to them.
        seed: the run's seed.
        epoch: the epoch, counted from 0.
        ids: int64 of shape [n], the samples' indices in the data set.

    Returns:
        The changed images, of the same shape and dtype.
    """
    pad = config.random_crop_padding
    if not pad and not config.horizontal_flip:
        return images
    height, width = images.shape[-2:]
    rows, columns, mirror = uniforms(seed, epoch, ids.to(images.device), 3)
    top, left = (rows * (2 * pad + 1)).long(), (columns * (2 * pad + 1)).long()
    y = torch.arange(height, device=images.device).expand(len(ids), -1)
    x = torch.arange(width, device=images.device).expand(len(ids), -1)
    if config.horizontal_flip:
        x = torch.where((mirror < 0.5)[:, None], x.flip(1), x)
    return _gather(F.pad(images, (pad,) * 4), y + top[:, None], x + left[:, None])


def _gather(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Pixel (y[n, i], x[n, j]) of image n at place (i, j)."""
    count, channels, _, width = images.shape
    places = (y[:, :, None] * width + x[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).view(count, channels, y.shape[1], x.shape[1])
