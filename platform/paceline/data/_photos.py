"""Transforms that turn photographs of any size into model inputs of one size."""

from typing import Any

import torch
from torchvision.transforms import v2

from paceline.data.augmentation import PhotoAugmentationConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Validation resizes to a little more than it cuts out: 256 for 224, as in He et al. 2015 (arXiv:1512.03385).
_MARGIN = 256 / 224


def training_transform(size: int, augmentation: PhotoAugmentationConfig) -> v2.Compose:
    """Return the transform from a PIL image to float32 [3, size, size]. It draws from torch's global generator."""
    cut: list[Any] = [v2.RandomResizedCrop(size, antialias=True)] if augmentation.random_resized_crop else _centre(size)
    flip = [v2.RandomHorizontalFlip()] if augmentation.horizontal_flip else []
    return v2.Compose([v2.RGB(), *cut, *flip, *_to_inputs()])


def validation_transform(size: int) -> v2.Compose:
    """From a PIL image to float32 of shape [3, size, size], always the same."""
    return v2.Compose([v2.RGB(), *_centre(size), *_to_inputs()])


def _centre(size: int) -> list[Any]:
    return [v2.Resize(round(size * _MARGIN), antialias=True), v2.CenterCrop(size)]


def _to_inputs() -> list[Any]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
