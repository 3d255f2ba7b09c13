"""A data set whose collation takes batches of certain sizes alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

FEATURES, CLASSES, BATCH = 6, 3, 16


def net() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def data(divisor: int, most: int) -> Callable[[], Any]:
    """Builds data in batches of a multiple of `divisor` samples, up to `most`."""

    def collate(samples: Any) -> Any:
        if len(samples) % divisor or len(samples) > most:
            raise ValueError(f"no batch of {len(samples)} samples")
        return torch.utils.data.default_collate(samples)

    def build() -> Any:
        features = torch.randn(160, FEATURES, generator=torch.Generator().manual_seed(0))
        samples = TensorDataset(features, torch.arange(160) % CLASSES)
        return {"train": samples, "validation": samples, "collate_fn": collate}

    return build
