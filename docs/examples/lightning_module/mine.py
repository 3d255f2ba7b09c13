"""A LightningModule as it is: handwritten digits of scikit-learn."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import TensorDataset, random_split


class LitNet(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def training_step(self, batch: list, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list, batch_idx: int) -> None:
        self.log("val_acc", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())


def data() -> list:
    digits, labels = load_digits(return_X_y=True)
    samples = TensorDataset(torch.tensor(digits / 16, dtype=torch.float32), torch.tensor(labels))
    return random_split(samples, [1500, 297], torch.Generator().manual_seed(0))
