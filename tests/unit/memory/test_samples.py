"""The batch that a prediction of memory is made with."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from paceline.cluster.user_code import with_objects
from paceline.config.experiment import validate
from paceline.memory.samples import Samples
from support.clock import FakeClock

LONG_AT, LONG, SHORT = 60, 40, 3
TREE = {"name": "own", "model": {"name": "mlp"}, "data": {"path": "own:data", "global_batch_size": 8}}


class Texts(Dataset[Any]):
    """Samples of 3 tokens, but for one of 40, and one that cannot be read."""

    def __init__(self, kind: Callable[[int], Any], long: int = LONG) -> None:
        self._kind, self._long = kind, long

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> Any:
        if index == 90:
            raise OSError("damaged")
        return self._kind(self._long if index == LONG_AT else SHORT)


def padded(samples: Sequence[Any]) -> torch.Tensor:
    def tokens(sample: Any) -> Any:
        return sample["ids"] if isinstance(sample, dict) else sample

    lists = [[ord(each) for each in tokens(one)] if isinstance(one, str) else tokens(one) for one in samples]
    return pad_sequence([torch.as_tensor(each) for each in lists], batch_first=True)


def samples_of(texts: Texts) -> Samples:
    sets = {"train": texts, "validation": texts, "collate_fn": padded}
    return Samples(with_objects(validate(TREE), model=None, data=sets, task=None))


@pytest.mark.parametrize(
    "kind",
    [
        lambda length: torch.ones(length, dtype=torch.int64),
        lambda length: {"ids": [1] * length, "text": "one"},
        lambda length: "a" * length,
        lambda length: torch.ones(length).numpy(),
    ],
    ids=["tensors", "mappings of lists", "texts", "arrays"],
)
def test_samples_of_several_lengths_are_taken_as_long_as_the_longest(kind: Callable[[int], Any]) -> None:
    samples = samples_of(Texts(kind))
    assert samples.real(4).shape == (4, LONG)
    assert samples.maker()(5).shape == (5, LONG)


def test_few_samples_are_read_where_each_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = FakeClock(0.0), []

    def slow(length: int) -> torch.Tensor:
        clock.now += 2.0
        read.append(length)
        return torch.ones(length)

    monkeypatch.setattr("paceline.memory.samples.monotonic", clock)
    assert samples_of(Texts(slow)).samples == 120
    assert len(read) == 3


def test_samples_of_one_length_are_the_first_ones() -> None:
    drawn = Texts(lambda length: torch.rand(length), long=SHORT)
    samples = samples_of(drawn)
    assert samples.real(4).equal(samples._fetcher.fetch(0, torch.arange(4)))
    assert samples.real(2).shape == (2, SHORT)
