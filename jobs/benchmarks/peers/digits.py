"""The network and the data that the four scripts of peers.py import. Their lines are not counted."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


def net() -> nn.Module:
    """A small CNN; its weights are always the same."""
    torch.manual_seed(0)
    blocks = [nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """4,000 images for training and 1,000 for validation: the MNIST images that are installed with Paceline."""
    from paceline.data._mnist5k import load, split

    images, targets = load()
    inputs = (images.float() / 255 - 0.1307) / 0.3081
    training, validation = (TensorDataset(inputs[ids], targets[ids]) for ids in split(targets))
    return training, validation
