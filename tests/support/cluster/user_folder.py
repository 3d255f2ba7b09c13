"""A user's working folder: code of their own, and an MLflow database that need not be made first."""

import shutil
from pathlib import Path

import pytest


def enter_user_folder(folder: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder a user's and go there, for the length of a test.

    Args:
        database: the fixture `prepared_database`.
    """
    (folder / "own_code.py").write_text(OWN_CODE)
    shutil.copy(database, folder / "mlflow.db")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


def end_pauses(folder: Path) -> None:
    """Have the user's task pause no longer, in this launch and in later ones."""
    (folder / "no-pauses").touch()


OWN_CODE = '''
"""What a user brings along: a model, data sets, and things that go wrong."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from paceline import Task, TaskOutput


NO_PAUSES = Path(__file__).with_name("no-pauses")


class Points(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(6, generator=generator) + index % 3
        return features + 0.1 * torch.randn(6), index % 3


def data(train=96, validation=30):
    return Points(train), Points(validation)


def net(width=8):
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 3))


class OwnTask(Task):
    """Does things to itself at steps of one rank: `acts` are pairs of what and at which step, each done once ever."""

    def __init__(self, model, acts=(), rank=1, done=".", pause=0.0):
        super().__init__(model)
        self.acts, self.rank, self.done, self.pause = acts, rank, Path(done), pause
        self.step = 0

    def forward(self, batch):
        features, targets = batch
        if self.training:
            self.step += 1
            time.sleep(0 if NO_PAUSES.exists() else self.pause)
            for act, step in self.acts:
                if self.step == step and int(os.environ.get("RANK", 0)) == self.rank and self._first_time(act):
                    self._do(act)
        logits = self.model(features)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return TaskOutput(loss, len(targets), {"accuracy": (logits.argmax(1) == targets).sum()})

    def _do(self, act):
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError("the user's own mistake")

    def _first_time(self, act):
        marker = self.done / f"done-{act}"
        first = not marker.exists()
        marker.touch()
        return first
'''
