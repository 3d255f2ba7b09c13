"""Digits as the tutorials load them: one image at a time, through PIL, with transforms in Python."""

from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from paceline.data._mnist5k import load, split


class Digits(Dataset[Any]):
    """Images of shape [1, 28, 28], made anew each time they are asked for."""

    def __init__(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        self.images = images.squeeze(1).numpy()
        self.targets = targets.tolist()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.targets[index]


def build() -> tuple[Digits, Digits]:
    """The training and the validation set."""
    images, targets = load()
    train, validation = split(targets)
    return Digits(images[train], targets[train]), Digits(images[validation], targets[validation])
