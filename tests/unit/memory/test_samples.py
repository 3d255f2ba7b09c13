"""The batch that a prediction of memory is made with."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, default_collate

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


def tokens(length: int) -> torch.Tensor:
    return torch.ones(length, dtype=torch.int64)


def padded(samples: Sequence[Any]) -> torch.Tensor:
    def ids(sample: Any) -> Any:
        return sample["ids"] if isinstance(sample, dict) else sample

    lists = [[ord(each) for each in one] if isinstance(one, str) else ids(one) for one in samples]
    return pad_sequence([torch.as_tensor(each) for each in lists], batch_first=True)


def samples_of(texts: Texts, collate: Callable[[list[Any]], Any] = padded) -> Samples:
    sets = {"train": texts, "validation": texts, "collate_fn": collate}
    return Samples(with_objects(validate(TREE), model=None, data=sets, task=None))


@pytest.mark.parametrize(
    "kind",
    [
        tokens,
        lambda length: {"ids": [1] * length, "source": "a" * (100 - length)},
        lambda length: "a" * length,
        lambda length: torch.ones(length).numpy(),
    ],
    ids=["tensors", "mappings of lists", "texts", "arrays"],
)
def test_padded_samples_are_taken_as_long_as_the_longest(kind: Callable[[int], Any]) -> None:
    samples = samples_of(Texts(kind))
    assert samples.real(4).shape == (4, LONG)
    assert samples.maker(samples.real)(5).shape == (5, LONG)
    assert samples.maker(samples.first)(5).shape == (5, SHORT)


def test_samples_that_are_joined_are_the_first_ones() -> None:
    samples = samples_of(Texts(tokens), torch.cat)
    assert samples.real(4).shape == (4 * SHORT,)
    assert samples.maker(samples.real)(64).shape == (64 * SHORT,)


def test_samples_of_shapes_that_make_no_batch_are_the_first_ones() -> None:
    assert samples_of(Texts(tokens), default_collate).real(4).shape == (4, SHORT)


def test_samples_of_one_length_are_the_first_ones() -> None:
    samples = samples_of(Texts(lambda length: torch.rand(length), long=SHORT))
    assert samples.real(4).equal(samples._fetcher.fetch(0, torch.arange(4)))


def test_few_samples_are_read_where_each_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = FakeClock(0.0), []

    def slow(length: int) -> torch.Tensor:
        clock.now += 2.0
        read.append(length)
        return tokens(length)

    monkeypatch.setattr("paceline.memory.samples.monotonic", clock)
    samples_of(Texts(slow, long=SHORT))
    assert len(read) == 3
