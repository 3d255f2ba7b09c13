"""Which data a run was trained on: the fingerprint sees a change, and looking at samples changes nothing."""

import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.data._tensors import TensorData
from paceline.engine.dataset_identity import fingerprint, identities, spaced
from support.toys import Points, fit, points, toy_config


def test_a_run_reports_its_data_once() -> None:
    (reported,) = [details for kind, details in fit(toy_config())[2].events if kind == "datasets"]
    train, validation = points()
    name = "support.toys:points"
    assert reported == {
        "training": {"name": name, "size": 96, "fingerprint": fingerprint(train)},
        "validation": {"name": name, "size": 30, "fingerprint": fingerprint(validation)},
    }
    assert fingerprint(train) != fingerprint(validation)


def test_sixteen_samples_from_the_first_to_the_last_are_looked_at() -> None:
    assert (spaced(1000)[0], spaced(1000)[-1], len(set(spaced(1000)))) == (0, 999, 16)
    assert [spaced(size) for size in (5, 1, 0)] == [[0, 1, 2, 3, 4], [0], []]


Named = namedtuple("Named", ["image", "label"])


def of(value: Any) -> str:
    """The fingerprint of a set with a value deep inside of one sample."""

    def sample(value: Any) -> dict[str, Any]:
        return {"image": (torch.zeros(2), [Named(np.ones(3, dtype=np.float32), value)]), "id": 3}

    return fingerprint([sample(0), sample(value), sample(0)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6])),
        (torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0]])),
        (torch.tensor([0]), torch.tensor([0.0], dtype=torch.float64)),
        (np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 2]), torch.tensor([1, 2])),
        (1, 1.0),
        ("a", b"a"),
        ([1, 2], [[1], 2]),
        ({"a": 1}, {"b": 1}),
        (None, 0),
    ],
)
def test_any_change_of_a_sample_that_is_looked_at_is_seen(before: Any, after: Any) -> None:
    assert of(before) == of(before)
    assert of(before) != of(after)


def test_one_changed_element_of_a_large_set_is_seen_where_it_is_looked_at() -> None:
    features = torch.arange(3000.0).reshape(1000, 3)
    changed = features.clone()
    changed[spaced(1000)[7], 2] += 1
    assert fingerprint(TensorData(features)) != fingerprint(TensorData(changed))
    assert fingerprint(TensorData(features)) != fingerprint(TensorData(features[:999]))
    assert fingerprint(TensorData(features)) != fingerprint(TensorDataset(features))


def test_bytes_count_and_not_how_they_lie_in_memory() -> None:
    image = torch.arange(6.0).reshape(2, 3)
    assert of(image.t()) == of(image.t().contiguous())
    assert of(torch.zeros(0, 3, dtype=torch.bfloat16))


def test_random_samples_have_the_same_fingerprint_each_time() -> None:
    torch.manual_seed(1)
    first = fingerprint(Points(96, noisy=True))
    torch.manual_seed(2)
    assert fingerprint(Points(96, noisy=True)) == first != fingerprint(Points(96))


class Drawing:
    """One that draws from generators of its own."""

    def __init__(self) -> None:
        self.generators = None
        self.torch = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(1)
        self.old_numpy = np.random.RandomState(1)
        self.python = random.Random(1)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(1, generator=self.torch).item(), self.numpy.random(), self.old_numpy.rand()
        return *drawn, self.python.random(), torch.rand(1).item(), np.random.rand(), random.random()


def test_no_generator_notices() -> None:
    def draws(look: bool) -> list[Any]:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        dataset = Drawing()
        if look:
            fingerprint(dataset)
        return [dataset[0], dataset[1]]

    assert draws(look=True) == draws(look=False)


class Broken(Points):
    def __getitem__(self, index: int) -> Any:
        if index == 29:
            raise OSError
        return super().__getitem__(index)


def test_a_sample_that_cannot_be_loaded_leaves_the_fingerprint_out() -> None:
    found = identities("mine", {"training": Points(20), "validation": Broken(30)})
    assert found["validation"] == {"name": "mine", "size": 30, "fingerprint": None}
    assert found["training"]["fingerprint"] == fingerprint(Points(20))
