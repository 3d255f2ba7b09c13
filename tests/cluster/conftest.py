"""One Ray for all tests of this folder, and folders that look like a user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A private local Ray, shared: starting one takes longer than most tests."""
    from paceline.cluster.session import connected

    with connected(None):
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with the user's code in it."""
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


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
    """Does something to itself at a step of one rank, once."""

    def __init__(self, model, act="", rank=1, step=0, once=None, pause=0.0):
        super().__init__(model)
        self.act, self.rank, self.at, self.once, self.pause = act, rank, step, once, pause
        self.step = 0

    def forward(self, batch):
        features, targets = batch
        if self.training:
            self.step += 1
            time.sleep(self.pause)
            if self.step == self.at and self._is_me() and self._first_time():
                if self.act == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ZeroDivisionError("the user's own mistake")
        logits = self.model(features)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return TaskOutput(loss, len(targets), {"accuracy": (logits.argmax(1) == targets).sum()})

    def _is_me(self):
        return int(os.environ.get("RANK", 0)) == self.rank

    def _first_time(self):
        if self.once is None:
            return True
        marker = Path(self.once)
        first = not marker.exists()
        marker.touch()
        return first
'''
