"""A regression on the diabetes data of scikit-learn."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import TensorDataset


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))


def data() -> tuple[TensorDataset, TensorDataset]:
    features, targets = load_diabetes(return_X_y=True, scaled=True)
    inputs = torch.tensor(features, dtype=torch.float32) * 20
    outputs = torch.tensor((targets - targets.mean()) / targets.std(), dtype=torch.float32)[:, None]
    return TensorDataset(inputs[:342], outputs[:342]), TensorDataset(inputs[342:], outputs[342:])
