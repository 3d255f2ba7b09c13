"""Two small networks, and points on a circle."""

import torch
from torch.nn import Linear, ModuleDict, ReLU, Sequential
from torch.utils.data import TensorDataset


def net() -> ModuleDict:
    outputs = {"maker": 2, "judge": 1}
    return ModuleDict({name: Sequential(Linear(2, 32), ReLU(), Linear(32, size)) for name, size in outputs.items()})


def data() -> tuple[TensorDataset, TensorDataset]:
    angles = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 2 * torch.pi
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    return TensorDataset(points), TensorDataset(points[:0])
