"""A timm backbone on ten classes of random images; put your own data set in its place."""

import timm
import torch
from torch.utils.data import TensorDataset


def net() -> torch.nn.Module:
    return timm.create_model("resnet10t", num_classes=10)


def data() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(160) % 10
    images = torch.randn(160, 3, 32, 32, generator=generator) + targets[:, None, None, None] / 3
    return TensorDataset(images[:128], targets[:128]), TensorDataset(images[128:], targets[128:])
