"""Data sets of every kind of sample, and a comparison of their batches to the bit."""

import random
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch

from paceline.data._tensors import Pixels, TensorData
from paceline.data.augmentation import AugmentationConfig
from paceline.engine.loading import BatchLoader, Fetcher
from paceline.engine.order import DataOrder, MicroBatch
from support.toys import Points

CPU = torch.device("cpu")
SEED = 3
SAMPLES = 150
"""More than one chunk."""


class Base:
    """A map-style data set of `SAMPLES` samples."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples


class Pair(NamedTuple):
    left: Any
    right: Any


class Nested(Base):
    def __getitem__(self, index: int) -> Any:
        number = torch.full((3, 2), float(index))
        counts: dict[str, Any] = defaultdict(list, row=[number, np.full(4, index, np.int16)])
        return {"pair": Pair(number.t(), index), "counts": counts, "flags": (index % 2 == 0, np.float32(index), 0.5)}


class Words(Base):
    def __getitem__(self, index: int) -> tuple[str, torch.Tensor]:
        return f"word {index}", torch.tensor(index)


class Ragged(Base):
    """Its collate function takes the samples apart, changes them in place, and draws."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": torch.arange(1000)[index : index + index % 5], "target": index}

    def collate_fn(self, samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, float]:
        targets = torch.tensor([sample.pop("target") for sample in samples])
        rows = torch.nn.utils.rnn.pad_sequence([sample["ids"].add_(1) for sample in samples], batch_first=True)
        return rows, targets, torch.rand(()).item() + random.random()


class Later(Base):
    """Only its second half has another shape."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2 + index // (SAMPLES // 2),), float(index))


class One(Base):
    def __getitem__(self, index: int) -> int:
        return index


class Drawing(Base):
    """One sample draws from one generator; with `once`, as if to choose a file, only when it is loaded first."""

    def __init__(self, generator: str, once: bool = False) -> None:
        super().__init__()
        self.loads = 1 if once else SAMPLES
        self.draw = {"torch": torch.randperm, "numpy": np.random.permutation, "random": random.getrandbits}[generator]

    def __getitem__(self, index: int) -> int:
        if index == 77 and self.loads:
            self.loads -= 1
            self.draw(3)  # type: ignore[operator]
        return index


def images(augmentation: AugmentationConfig | None) -> TensorData:
    pixels = torch.randint(0, 256, (SAMPLES, 1, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return TensorData(pixels, torch.arange(SAMPLES), pixels=Pixels([0.5], [0.2]), augmentation=augmentation)


DATA = {
    "points": lambda: Points(SAMPLES),
    "nested": Nested,
    "images": lambda: images(AugmentationConfig(random_crop_padding=2, horizontal_flip=True)),
    "one": One,
    "words": Words,
    "ragged": Ragged,
    "later": Later,
}
FOR_MEMORY_ONLY = ("words", "ragged", "later")


def batches_of(fetcher: Fetcher, epoch: int, num_workers: int) -> list[Any]:
    """Those of an epoch, in halves that are shuffled each."""
    half = SAMPLES // 2
    order = DataOrder(half, global_batch_size=16, micro_batch_size=10, seed=SEED)
    ids = [micro_batch.ids + start for start in (0, half) for micro_batch in order.micro_batches(epoch, 0)]
    loader = BatchLoader(fetcher, CPU, num_workers)
    try:
        return [batch for _, batch in loader.load(epoch, [MicroBatch(part, 16) for part in ids])]
    finally:
        loader.close()


def assert_same(mine: Any, other: Any) -> None:
    """Of equal types throughout, and tensors of equal bits and layout."""
    assert type(mine) is type(other)
    if isinstance(mine, torch.Tensor):
        assert (mine.dtype, mine.stride()) == (other.dtype, other.stride())
        assert mine.equal(other)
    elif isinstance(mine, dict):
        assert list(mine) == list(other)
        assert_same(list(mine.values()), list(other.values()))
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(other)
        for pair in zip(mine, other, strict=True):
            assert_same(*pair)
    else:
        assert mine == other
